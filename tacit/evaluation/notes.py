"""Test whether a policy can use notes. Run it before comparing methods that distill notes or put them in the prompt.

The same on-policy episodes are scored with four notes in the prompts, routed as in OPID:

    true      the hindsight skills of the episode itself
    empty     a note that says nothing
    placebo   the skills of another task's episode
    oracle    what the expert would do at the step

    shift = log π(y | H(h, note)) − log π(y | h)          of each written action, summed over its tokens
    AUC   = P(shift of an action the expert agrees with > shift of one it does not), ties count half

A note that the policy can use raises good actions more than bad ones: AUC above that of an empty note. Beside it, the success
of episodes played with each note in the prompt, and with the world's handbook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from tacit.companions.hindsight import EMPTY, Analyzer, Hindsight, Notes, RoutedSkills, advise, load_handbook
from tacit.core.errors import TacitError
from tacit.core.hindsight import Lesson
from tacit.core.method import Pending, PromptReader, WrappedContext
from tacit.core.types import Condition, Group, IterationInfo, Observation, Prompt, Task, Transition
from tacit.credit.skill_shift import skill_shifts
from tacit.evaluation.evaluate import RolloutSetup
from tacit.evaluation.statistics import bounded_interval
from tacit.prompts.history import insert_lesson

KINDS: tuple[Notes, ...] = get_args(Notes)
NONE, HANDBOOK = "none", "handbook"
MIN_AUC_GAIN, MIN_HANDBOOK_GAIN = 0.1, 0.05
"""smallest gains of a policy that can use its notes: AUC of true over empty, success with the handbook over none"""
RESAMPLES = 1000
LessonOfTurn = Callable[[Observation], Lesson]


@dataclass(frozen=True)
class NotedContext(WrappedContext):
    """Another context with a lesson in every prompt."""

    lesson: Callable[[Task], LessonOfTurn]  # called when an episode begins; the result gives the lesson of each turn
    instructed: bool = False

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        return _NotedReader(self.inner.begin(task, condition), self.lesson(task), self.instructed)


class _NotedReader(PromptReader):
    def __init__(self, inner: PromptReader, lesson: LessonOfTurn, instructed: bool) -> None:
        self._inner, self._lesson, self._instructed = inner, lesson, instructed

    def read(self, observation: Observation) -> Prompt:
        prompt = insert_lesson(self._inner.read(observation), self._lesson(observation), self._instructed)
        self.block = self._inner.block
        return prompt

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        return self._inner.record(action, transition, raw_text)

    def ask(self, action: str) -> Pending | None:
        return self._inner.ask(action)


@dataclass(frozen=True)
class NoteResult:
    note: str
    success: float
    success_interval: tuple[float, float]  # 95%, over tasks
    auc: float | None = None  # None: not scored, or the expert agrees with all actions or with none
    auc_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Gate:
    results: tuple[NoteResult, ...]
    tasks: int
    steps: int  # steps scored with every note
    agreeing: float  # share of these on which the expert agrees

    @property
    def auc_gain(self) -> float | None:
        aucs = {result.note: result.auc for result in self.results}
        true, empty = aucs.get("true"), aucs.get("empty")
        return None if true is None or empty is None else true - empty

    @property
    def handbook_gain(self) -> float | None:
        success = {result.note: result.success for result in self.results}
        return success[HANDBOOK] - success[NONE] if HANDBOOK in success and NONE in success else None

    @property
    def passes(self) -> bool:
        """Whether both gains are large enough. Without a handbook, only the AUC counts."""
        by_success = self.handbook_gain is None or self.handbook_gain >= MIN_HANDBOOK_GAIN
        return self.auc_gain is not None and self.auc_gain >= MIN_AUC_GAIN and by_success


def measure_notes(setup: RolloutSetup, tasks: int, members: int, analyzer: Analyzer, instructed: bool) -> Gate:
    """Play the last `tasks` training tasks (imitation uses the first), score these episodes with each kind of note, and play
    the tasks with each kind of note."""
    world, policy, chosen = setup.world, setup.policy, setup.tasks[-tasks:]
    if len({task.id for task in chosen}) < 2:
        raise TacitError(f"{len(chosen)} task is too few: a placebo is another task's note, so use --tasks 2 or more.")
    expert = world.expert()
    groups = setup.play(chosen, members, setup.seed)
    hindsight = Hindsight(analyzer)
    hindsight.observe(groups, policy, IterationInfo(setup.seed))
    teachers: dict[str, RoutedSkills] = {
        kind: RoutedSkills(hindsight, "critical_first", kind, expert, instructed) for kind in KINDS
    }
    aucs, steps, agreeing = score_notes(groups, teachers, policy)

    episode = {group.task.id: hindsight.skills(group.trajectories[0]).episode for group in groups}
    ids = list(episode)
    other_episode = {task: episode[ids[(i + 1) % len(ids)]] for i, task in enumerate(ids)}

    def same_at_every_turn(text: str) -> LessonOfTurn:
        return lambda observation: Lesson(task=text)

    def expert_lesson(task: Task) -> LessonOfTurn:
        adviser = expert(task)
        return lambda observation: Lesson(step=adviser.act(observation))

    lessons: dict[str, Callable[[Task], LessonOfTurn]] = {
        "true": lambda task: same_at_every_turn(episode.get(task.id, "")),
        "empty": lambda task: same_at_every_turn(EMPTY),
        "placebo": lambda task: same_at_every_turn(other_episode.get(task.id, "")),
        "oracle": expert_lesson,
    }
    if world.handbook:
        handbook = load_handbook(world)
        lessons[HANDBOOK] = lambda task: same_at_every_turn(handbook.page(task))
    played = {NONE: groups}
    for kind, lesson in lessons.items():
        noted = replace(setup, context=NotedContext(setup.context, lesson, instructed))
        played[kind] = noted.play(chosen, members, setup.seed)
    results = []
    for kind, kind_groups in played.items():
        shares = [float(np.mean([t.success for t in group.trajectories])) for group in kind_groups]
        auc, interval = aucs.get(kind, (None, None))
        results.append(NoteResult(kind, float(np.mean(shares)), bounded_interval(shares), auc, interval))
    return Gate(tuple(results), len(groups), steps, agreeing)


AUC = tuple[float | None, tuple[float, float] | None]


def score_notes(groups: Sequence[Group], teachers: Mapping[str, RoutedSkills], policy) -> tuple[dict[str, AUC], int, float]:
    """(AUC and its interval by kind of note, steps scored, share of these on which the expert agrees).

    A step counts if every kind has a note for it that fits into the prompt."""
    (expert,) = {teacher.expert for teacher in teachers.values()}
    assert expert is not None, "agreement needs an expert"
    counts_N = np.ones(sum(len(group.steps) for group in groups), bool)
    shifts: dict[str, np.ndarray] = {}
    for kind, teacher in teachers.items():
        prompts_by_group = [teacher.prompts(group, policy) for group in groups]
        counts_N &= np.array([bool(prompts) for by_step in prompts_by_group for prompts in by_step], bool)
        tokens = zip(groups, skill_shifts(groups, prompts_by_group, policy), strict=True)
        steps = [step_T for g, shift_T in tokens for step_T in np.split(shift_T, np.cumsum(g.tokens_per_step)[:-1])]
        shifts[kind] = np.array([step_T.sum() for step_T in steps])
    agrees: list[bool] = []
    for t in (trajectory for group in groups for trajectory in group.trajectories):
        agrees += [step.action == advice for step, advice in zip(t.steps, advise(expert, t), strict=True)]
    task_N = np.concatenate([np.full(len(group.steps), i) for i, group in enumerate(groups)])[counts_N]
    agrees_N, rows = np.array(agrees)[counts_N], [np.flatnonzero(task_N == i) for i in range(len(groups))]
    aucs: dict[str, AUC] = {}
    for kind, shift_N in ((kind, shift_N[counts_N]) for kind, shift_N in shifts.items()):
        auc, rng, resampled = area_under_curve(shift_N, agrees_N), np.random.default_rng(0), []
        for tasks_drawn in rng.integers(len(groups), size=(RESAMPLES, len(groups))) if auc is not None else ():
            steps_drawn = np.concatenate([rows[i] for i in tasks_drawn])
            resampled.append(area_under_curve(shift_N[steps_drawn], agrees_N[steps_drawn]))
        if auc is None:
            aucs[kind] = None, None
            continue
        low, high = np.percentile([value for value in resampled if value is not None], [2.5, 97.5])
        aucs[kind] = auc, (float(low), float(high))
    return aucs, int(counts_N.sum()), float(agrees_N.mean()) if len(agrees_N) else 0.0


def area_under_curve(score_N: np.ndarray, positive_N: np.ndarray) -> float | None:
    """P(score of a positive > score of a negative), ties count half. None if one of the two is missing.

    >>> area_under_curve(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]))
    0.75
    """
    high, low = score_N[positive_N], np.sort(score_N[~positive_N])
    if not len(high) or not len(low):
        return None
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * len(low)))
