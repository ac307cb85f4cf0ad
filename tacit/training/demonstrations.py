"""What an expert did, as the policy would have read it: one sample per turn (prompt tokens, action tokens)."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tacit.companions.experience.companion import GUIDED
from tacit.companions.experience.extractor import render_critic_prompt, render_distill_prompt
from tacit.core.errors import TacitError, told_of
from tacit.core.hindsight import Lesson, Skills
from tacit.core.method import Context
from tacit.core.progress import number_of
from tacit.core.protocols import Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Condition, Observation, Step, Task, Trajectory
from tacit.core.world import Adviser, Environment, Expert, World
from tacit.prompts.conversation import teach
from tacit.rollout.encoding import encode_action, fit_prompt
from tacit.rollout.episodes import NO_OBSERVER, EpisodePlan, RolloutObserver, SamplingPolicy, rollout
from tacit.rollout.replay import Turn, build_trajectory, iterate_trajectory, play_episode, render_turns
from tacit.rollout.worlds import TimedExpert, WorldPool, describe_crashes, refuse_if_all_crashed
from tacit.runs.files import explain_disk_errors
from tacit.runs.trajectories import trajectory_record
from tacit.training.settings import SupervisedSettings, TrainSettings

HOPELESS = 8
"""episodes that may break, all from the first on, before it is given up: each may have been waited for as long as a world may
take"""
Sample = tuple[np.ndarray, np.ndarray]
"""the tokens of a prompt, and those of the action"""


@dataclass(frozen=True)
class Demonstrations:
    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    episodes: int
    won: int
    broken: int = 0
    """episodes in which the world or the expert raised; they teach nothing"""
    too_long: int = 0
    """turns of won episodes whose prompt does not fit in the model; they teach nothing"""

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def joined(cls, parts: Sequence[Demonstrations]) -> Demonstrations:
        """Those of several worlds as one."""
        counts = {name: sum(getattr(part, name) for part in parts) for name in ("episodes", "won", "broken", "too_long")}
        return cls([p for part in parts for p in part.prompts], [c for part in parts for c in part.completions], **counts)

    def __str__(self) -> str:
        lost = [f", {self.broken} broke" if self.broken else ""]
        lost.append(
            f"; left out, since the model cannot read that much: {number_of(self.too_long, 'turn')}" if self.too_long else ""
        )
        return f"{number_of(len(self), 'turn')} of {number_of(self.won, 'won episode')} (of {self.episodes}{lost[0]}){lost[1]}"


def demonstrate(
    world: Environment,
    tasks: Sequence[Task],
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    expert: str = "",
    noise: float = 0.0,
    seed: int = 0,
) -> Demonstrations:
    """Play each task with the expert; with probability `noise` a turn is a random action instead, admissible now or a turn
    ago (and then refused at times), which is not shown to the policy but whose consequences are. Only won episodes teach."""
    make_expert = world.expert(expert or None)
    shown: list[Sample] = []
    played = won = turns = 0
    broken: list[str] = []
    live = world.make()
    for task in tasks:
        if played == len(broken) == HOPELESS:
            break
        played += 1
        rng = random.Random(derive(seed, "demonstration", task.id))
        try:
            success, samples = play(live, Straying(make_expert(task), noise, rng), task, context, tokenizer, max_steps)
        except TacitError:
            raise
        except (Exception, SystemExit) as error:
            broken.append(f"{told_of(error)}, in task {task.id!r}")
            live = world.make()
            continue
        if success:
            won += 1
            turns += len(samples)
            shown += [sample for sample in samples if sample is not None]
    live.close()
    if not won:
        broke = f"{len(broken)} broke; the first: {broken[0]}" if broken else "0 broke"
        raise TacitError(
            f"the expert of world {world.name!r} won none of {played} tasks within {max_steps} steps ({broke}): "
            "there is nothing to imitate. Choose another expert, or train without SFT."
        )
    if not shown:
        raise TacitError(
            f"none of the {turns} turns the expert of world {world.name!r} showed fits in the model's "
            f"{tokenizer.context_limit} tokens. Choose a model with a longer context, or a shorter prompt (wording, history)."
        )
    return Demonstrations([p for p, _ in shown], [c for _, c in shown], len(tasks), won, len(broken), turns - len(shown))


class Straying:
    """An expert, but for the turns in which it does anything else that is possible now or was a turn ago."""

    def __init__(self, hero: Expert, noise: float, rng: random.Random) -> None:
        self._hero, self._noise, self._rng = hero, noise, rng
        self._before: Observation | None = None
        self.itself = True
        """the last action was the expert's own"""
        self.wishes: list[str] = []
        """what the expert would have done, turn by turn"""

    def act(self, observation: Observation) -> str:
        action = self._hero.act(observation)
        self.wishes.append(action)
        stray = (self._before or observation).actions + observation.actions
        self._before = observation
        self.itself = not (stray and self._rng.random() < self._noise)
        if not self.itself:
            action = self._rng.choice(stray)
            if isinstance(self._hero, Adviser):
                self._hero.happened(action)
        return action


def play(
    live: World,
    player: Straying,
    task: Task,
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    condition: Condition = PLAIN,
) -> tuple[bool, list[Sample | None]]:
    """One episode: whether it was won, and the expert's own turns; None for one that does not fit in the model."""
    samples: list[Sample | None] = []
    won = False
    for turn in render_turns(context, task, play_episode(live, task, player, max_steps), condition):
        won = bool(turn.transition.success)
        if player.itself:
            samples.append(sample(turn, context, tokenizer))
    return won, samples


def sample(turn: Turn, context: Context, tokenizer: Tokenizer) -> Sample | None:
    """A turn to imitate; None where its prompt does not fit in the model."""
    completion = encode_action(turn.prompt, turn.action, context.format, tokenizer)
    _, tokens, fits = fit_prompt(turn.prompt, tokenizer, len(completion))
    return (tokens, completion) if fits else None


# How a note is read and how one is written, shown by rule: where a tiny actor and a tiny extractor begin.
#
# A language model can do both when it is asked. A policy of a million parameters cannot, so beside the expert's episodes may be
# shown, with what the world's own hindsight says of an episode:
#
#     noted      an expert's episode as a guided agent reads it, with a note
#     step_notes the critical steps of an episode, each with what hindsight says of it before the request, and the expert's
# action
#     judged     each such note with its task and some success rate: accept it, or reject it where it is another episode's
#     entries    the record of an episode as an extractor reads it, and what is to be written down
#
# A share of the notes and entries (`astray`) is that of another episode, and so mostly wrong; the action is the expert's all
# the same. What is imitated is then that a note may be trusted so far and no further, and that entries are no better than that:
# what helps is left to practice.

ANSWER_TOKENS = 64
"""room for an entry, as a tiny extractor has it"""
LOST = 0.9
"""share of random turns in every second record: an extractor reads of failures more often than of anything else"""
WITH_ENTRY = 0.5
"""share of the records of an agent that had been given an entry; in half of them it is to be updated"""


@dataclass(frozen=True)
class Scribe:
    world: Environment
    live: World
    make_expert: Callable[[Task], Expert]
    tasks: Sequence[Task]
    max_steps: int
    noise: float
    astray: float

    def note(self, task: Task, rng: Random) -> tuple[str, bool]:
        """(what a straight episode of the task teaches, True), or what one of another task does, and False."""
        wrong = rng.random() < self.astray
        told = self._teaches(self._episode(rng.choice(self.tasks) if wrong else task, 0.0, rng))
        return told, not wrong

    def entry(self, task: Task, rng: Random, tokenizer: Tokenizer) -> Sample | None:
        """A record, and what is to be written down of it; None where it does not fit in the model."""
        trajectory = self._episode(task, rng.choice((self.noise, LOST)), rng)
        text = self._teaches(trajectory)
        if text and rng.random() < self.astray:
            text = self._teaches(self._episode(rng.choice(self.tasks), self.noise, rng)) or text
        given = self.note(task, rng)[0] if rng.random() < WITH_ENTRY else ""
        word = "update" if given and rng.random() < 0.5 else "add"
        room = 3 * max(64, tokenizer.context_limit - ANSWER_TOKENS)
        prompt = tokenizer.encode_prompt(render_distill_prompt(trajectory, given, "terse", room))
        completion = tokenizer.encode_completion(f"{word}: {text}" if text else "return")
        return (prompt, completion) if len(prompt) + len(completion) <= tokenizer.context_limit else None

    def critical(self, task: Task, rng: Random, context: Context, tokenizer: Tokenizer) -> list[Sample | None]:
        """The steps on which an episode turned, straight or lost: what is read there with the step's note, and what the expert
        would have done."""
        player = self.player(task, rng.choice((self.noise, LOST)), rng)
        trajectory = self._trajectory(task, player, rng)
        notes = self._skills(trajectory).steps
        other = self._skills(self._episode(rng.choice(self.tasks), LOST, rng)).steps
        shown = []
        for t, turn in enumerate(render_turns(context, task, iterate_trajectory(trajectory))):
            if t in notes:
                astray = bool(other) and rng.random() < self.astray
                note = rng.choice(sorted(other.values())) if astray else notes[t]
                taught = replace(turn, prompt=teach(turn.prompt, Lesson(step=note)), action=player.wishes[t])
                shown.append(sample(taught, context, tokenizer))
        return shown

    def player(self, task: Task, noise: float, rng: Random) -> Straying:
        return Straying(self.make_expert(task), noise, rng)

    def _episode(self, task: Task, noise: float, rng: Random) -> Trajectory:
        return self._trajectory(task, self.player(task, noise, rng), rng)

    def _trajectory(self, task: Task, player: Straying, rng: Random) -> Trajectory:
        return build_trajectory(task, play_episode(self.live, task, player, self.max_steps), rng.randrange(2**31))

    def _teaches(self, trajectory: Trajectory) -> str:
        return " ".join(self._skills(trajectory).episode.split())

    def _skills(self, trajectory: Trajectory) -> Skills:
        if self.world.hindsight is None:
            asked = "leave sft.noted, sft.step_notes and sft.entries out."
            raise TacitError(f"world {self.world.name!r} has no hindsight to note by: {asked}")
        return self.world.hindsight(trajectory)


def scribed(
    world: Environment,
    tasks: Sequence[Task],
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    settings: SupervisedSettings,
    seed: int,
) -> Demonstrations:
    """Everything of these kinds that the settings ask for; tasks come again where they are fewer."""
    live = world.make()
    scribe = Scribe(world, live, world.expert(settings.expert or None), tasks, max_steps, settings.noise, settings.astray)
    shown: list[Sample | None] = []
    won = 0
    for i in range(settings.noted):
        task, rng = tasks[i % len(tasks)], Random(derive(seed, "noted", i))
        note, true = scribe.note(task, rng)
        player = scribe.player(task, settings.noise, rng)
        success, turns = play(live, player, task, context, tokenizer, max_steps, Condition(GUIDED, note))
        won += success
        shown += turns if success else []
        question, verdict = render_critic_prompt(task.goal, note, rng.random(), "terse"), "accept" if true else "reject"
        shown.append((tokenizer.encode_prompt(question), tokenizer.encode_completion(verdict)))
    for i in range(settings.step_notes):
        shown += scribe.critical(tasks[i % len(tasks)], Random(derive(seed, "step note", i)), context, tokenizer)
    for i in range(settings.entries):
        shown.append(scribe.entry(tasks[i % len(tasks)], Random(derive(seed, "entry", i)), tokenizer))
    live.close()
    fitting = [sample for sample in shown if sample is not None]
    return Demonstrations(
        [p for p, _ in fitting],
        [c for _, c in fitting],
        settings.noted + settings.step_notes + settings.entries,
        won + settings.step_notes + settings.entries,
        too_long=len(shown) - len(fitting),
    )


# Relabelling (DAgger: Ross, Gordon, Bagnell 2011): the policy plays, and at every turn the expert says what it would do there.
#
#     D ← D ∪ {(prompt of s, expert(s)) : s visited by the policy}
#
# Demonstrations show where the expert comes to. These show where the policy comes to, lost episodes and refused actions among
# them, and how one goes on from there. Which action the policy took decides where it came, never what is imitated.

BATCH = 256
"""episodes played side by side"""


@dataclass(frozen=True)
class Relabelled:
    """Episodes of the policy, with what the expert said of their turns."""

    played: list[Trajectory] = field(default_factory=list)
    advice: list[list[str]] = field(default_factory=list)
    """of each episode: the expert's actions, one for each turn as far as it could be asked"""
    broken: list[str] = field(default_factory=list)
    """why the expert could not be asked to the end of an episode"""

    @property
    def turns(self) -> list[tuple[Step, str]]:
        """every turn with the expert's action"""
        episodes = zip(self.played, self.advice, strict=True)
        return [pair for trajectory, told in episodes for pair in zip(trajectory.steps, told, strict=False)]

    @property
    def agreement(self) -> float:
        """The share of turns in which the expert would have done what the policy did."""
        same = [step.action == said for step, said in self.turns]
        return float(np.mean(same)) if same else 0.0

    @property
    def won(self) -> int:
        return sum(trajectory.success for trajectory in self.played)

    def metrics(self) -> dict[str, float]:
        return {
            "relabel_agreement": self.agreement,
            "relabel_success": self.won / len(self.played),
            "relabel_turns": float(len(self.turns)),
        }

    def records(self) -> list[dict[str, Any]]:
        """The episodes as they are recorded, each turn with the `expert`'s action."""
        records = [trajectory_record(trajectory) for trajectory in self.played]
        for record, advice in zip(records, self.advice, strict=True):
            for turn, said in zip(record["turns"], advice, strict=False):
                turn["expert"] = said
        return records

    def __str__(self) -> str:
        lost = f"; in {len(self.broken)} the expert broke, the first: {self.broken[0]}" if self.broken else ""
        crashed = f"; {text}" if (text := describe_crashes(self.played)) else ""
        played = f"{number_of(len(self.turns), 'turn')} of {number_of(len(self.played), 'episode')} ({self.won} won)"
        return f"{played}, the expert would have done the same in {self.agreement:.1%}{lost}{crashed}"


def check_adviser(world: Environment, expert: str) -> None:
    """Refuse an expert that only knows its own episodes, where one can tell before any is made."""
    make = world.expert(expert or None)
    if isinstance(make, type) and not issubclass(make, Adviser):
        raise _no_adviser(world, expert)


def relabel(
    world: Environment, played: Sequence[Trajectory], expert: str = "", timeout_s: float = TrainSettings.world_timeout_s
) -> Relabelled:
    """Ask the expert at every turn of episodes that somebody else played; it is given up where it never answers at all."""
    make, found = world.expert(expert or None), Relabelled()
    for trajectory in played:
        if len(found.broken) == HOPELESS and not any(found.advice):
            break
        told: list[str] = []
        try:
            adviser = TimedExpert(make, timeout_s, trajectory.task)
            if not isinstance(adviser, Adviser):
                raise _no_adviser(world, expert)
            for step in trajectory.steps:
                told.append(adviser.act(step.observation))
                adviser.happened(step.action)
        except TacitError:
            raise
        except (Exception, SystemExit) as error:
            found.broken.append(told_of(error))
        found.played.append(trajectory)
        found.advice.append(told)
    return found


def samples(relabelled: Relabelled, context: Context, tokenizer: Tokenizer) -> Demonstrations:
    """What the policy read, word for word, with the expert's answer."""
    prompts, completions = [], []
    for step, said in relabelled.turns:
        completion = encode_action(step.prompt, said, context.format, tokenizer)
        if len(step.prompt_tokens) + len(completion) <= tokenizer.context_limit:
            prompts.append(step.prompt_tokens)
            completions.append(completion)
    too_long = len(relabelled.turns) - len(prompts)
    if not prompts:
        raise TacitError(
            f"nothing was relabelled: {relabelled}; {too_long} turns do not fit in the model. Mend the expert, or leave "
            "sft.rounds out."
        )
    return Demonstrations(prompts, completions, len(relabelled.played), relabelled.won, len(relabelled.broken), too_long)


def play_round(
    tasks: Sequence[Task],
    seed: int,
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    observer: RolloutObserver = NO_OBSERVER,
) -> list[Trajectory]:
    """One episode of each task. Refused where no world could be played to its end."""
    plans = [EpisodePlan(task, derive(seed, i)) for i, task in enumerate(tasks)]
    played = []
    for start in range(0, len(plans), BATCH):
        played += rollout(plans[start : start + BATCH], context, worlds, policy, sampling, max_steps, observer=observer)
    refuse_if_all_crashed(played, "There is nothing to relabel. Mend the world, then go on with `tacit train --resume RUN`.")
    return played


def tasks_of_round(tasks: Sequence[Task], shown: int, number: int, count: int) -> list[Task]:
    """`count` training tasks for round `number` (from 1): first those after the `shown` ones, then from the beginning."""
    begin = shown + (number - 1) * count
    return [tasks[(begin + i) % len(tasks)] for i in range(count)]


def keep(shown: Demonstrations, place: Path) -> None:
    """What was relabelled, as tokens: a killed run goes on with exactly these."""
    with explain_disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.tmp")
        try:
            with temporary.open("wb") as file:
                np.savez_compressed(
                    file, prompts=np.concatenate(shown.prompts), prompt_lengths=[len(p) for p in shown.prompts],
                    completions=np.concatenate(shown.completions), completion_lengths=[len(c) for c in shown.completions],
                    counts=[shown.episodes, shown.won, shown.broken, shown.too_long],
                )  # fmt: skip
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)


def kept(place: Path) -> Demonstrations:
    """The inverse of `keep`."""
    try:
        with np.load(place) as file:
            prompts, completions = (
                np.split(file[f"{name}s"], np.cumsum(file[f"{name}_lengths"])[:-1]) for name in ("prompt", "completion")
            )
            return Demonstrations(prompts, completions, *map(int, file["counts"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise TacitError(
            f"cannot read what was relabelled before this run stopped, {place}: {error}. Delete the checkpoints after sft "
            f"{int(place.stem)}, and the round is played anew."
        ) from error


def _no_adviser(world: Environment, expert: str) -> TacitError:
    name = expert or next(iter(world.experts))
    able = [n for n, make in world.experts.items() if isinstance(make, type) and issubclass(make, Adviser)]
    other = f"choose {' or '.join(able)} (--sft.expert)" if able else "show recoveries with --sft.noise"
    return TacitError(
        f"the expert {name!r} of world {world.name!r} knows only episodes of its own and cannot say what to do in a policy's: "
        f"{other}, leave sft.rounds out, or give it `happened` (Adviser in tacit/core/world.py)."
    )
