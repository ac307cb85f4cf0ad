"""OPID's hindsight: the companion that has episodes analyzed, skill routing, teacher prompts, and handbooks."""

from __future__ import annotations

import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from tacit.companions.hindsight.analyzers import Analysis, Analyzer
from tacit.core.errors import TacitError, unknown
from tacit.core.hindsight import Lesson, Skills
from tacit.core.method import Companion, Conditions
from tacit.core.protocols import Policy, Tokenizer
from tacit.core.resources import FREE, Prices
from tacit.core.types import Condition, Group, IterationInfo, Task, Trajectory
from tacit.core.world import Environment
from tacit.prompts.conversation import LONGEST_NOTE, insert_lesson
from tacit.rollout.encoding import fit_prompt


class Hindsight(Companion):
    """`observe` starts the analysis of a batch; the first request for a skill waits for it. Nothing is kept between iterations:
    skills are for the policy that played."""

    name = "hindsight"
    has_state = False
    read_in_rollouts = False

    def __init__(self, analyzer: Analyzer, prices: Prices = FREE) -> None:
        self._analyzer, self._prices = analyzer, prices
        self._trajectories: list[Trajectory] = []
        self._result: Callable[[], list[Analysis]] = list
        self._found: dict[int, Analysis] | None = {}
        self._began = self._waited = 0.0
        self.examples: dict[str, str] = {}
        """the most common reason for a missing skill, for the alarm `unskilled`"""

    def check(self, policy: Policy) -> None:
        self._analyzer.check(policy)

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        self._trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        self._began, self._waited, self._found = time.perf_counter(), 0.0, None
        self._result = self._analyzer.begin(self._trajectories, policy, info)
        return {}

    def analysis(self, trajectory: Trajectory) -> Analysis:
        """The analysis of an episode of the current batch."""
        if self._found is None:
            began = time.perf_counter()
            analyses = self._result()
            self._waited = time.perf_counter() - began
            self._found = {id(t): a for t, a in zip(self._trajectories, analyses, strict=True)}
        return self._found.get(id(trajectory)) or Analysis(problem="no episode of this batch")

    def skills(self, trajectory: Trajectory) -> Skills:
        return self.analysis(trajectory).skills

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        analyses = [self.analysis(trajectory) for trajectory in self._trajectories]
        if not analyses:
            return {}
        failed = Counter(analysis.problem for analysis in analyses if analysis.problem)
        self.examples = {"unskilled": failed.most_common(1)[0][0]} if failed else {}
        read, written = sum(a.read for a in analyses), sum(a.written for a in analyses)
        return {
            "hindsight/critical_steps": float(np.mean([len(a.skills.steps) for a in analyses])),
            "hindsight/without_skill": sum(failed.values()) / len(analyses),
            "hindsight/asked": float(sum(a.asked for a in analyses)),
            "hindsight/tokens_read": float(read),
            "hindsight/tokens_written": float(written),
            "hindsight/cost": self._prices.of(read, written),
            "hindsight/seconds_waited": round(self._waited, 3),
        }

    def load(self, directory: Path) -> None: ...


Routing = Literal["critical_first", "additive", "episode", "step"]


def route(skills: Skills, t: int, routing: Routing) -> tuple[Lesson, ...]:
    """The skills injected at step t.

    critical_first   the step skill if there is one, else the episode skill     s_t = s_step,t if t ∈ C else s_ep
    additive         both, as two shifts that add up
    episode, step    one level only
    """
    episode = (Lesson(task=skills.episode),) if skills.episode else ()
    step = (Lesson(step=skills.steps[t]),) if t in skills.steps else ()
    if routing == "critical_first":
        return step or episode
    return {"additive": episode + step, "episode": episode, "step": step}[routing]


@dataclass(frozen=True)
class RoutedSkills:
    """Hindsight's skills, routed to the steps."""

    hindsight: Hindsight = field(compare=False)
    routing: Routing = "critical_first"

    def lessons(self, trajectory: Trajectory) -> Sequence[tuple[Lesson, ...]]:
        skills = self.hindsight.skills(trajectory)
        return [route(skills, t, self.routing) for t in range(len(trajectory))]

    def prompts(self, group: Group, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        return render_teacher_prompts(group, self.lessons, tokenizer)


@dataclass(frozen=True)
class Handbook:
    """A fixed skill per task family, the same at every step."""

    pages: Mapping[str, str]

    def page(self, family: str) -> str:
        """The general text and the family's own."""
        return "\n".join(text for name in dict.fromkeys(("", family)) if (text := self.pages.get(name, "")))

    def lessons(self, trajectory: Trajectory) -> Sequence[tuple[Lesson, ...]]:
        page = self.page(trajectory.task.family)
        return [(Lesson(task=page),) if page else ()] * len(trajectory)

    def prompts(self, group: Group, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        return render_teacher_prompts(group, self.lessons, tokenizer)


def render_teacher_prompts(
    group: Group, lessons: Callable[[Trajectory], Sequence[Sequence[Lesson]]], tokenizer: Tokenizer
) -> list[list[np.ndarray]]:
    """The teacher's prompts H(h, s), for every step. History is truncated, oldest first; the skill and the observation never. A
    prompt that still does not fit is left out."""
    found = []
    for trajectory in group.trajectories:
        for step, at_step in zip(trajectory.steps, lessons(trajectory), strict=True):
            fitted = [
                fit_prompt(insert_lesson(step.prompt, lesson), tokenizer, len(step.completion.tokens)) for lesson in at_step
            ]
            found.append([tokens for _, tokens, fits in fitted if fits])
    return found


SKILL_CONDITION = "skill"
"""the condition of an episode whose agent reads the handbook"""


def load_handbook(world: Environment, file: str = "") -> Handbook:
    """The handbook in a TOML file, or the world's own.

    world = "alfworld"
    general = "Look where such things usually are."

    [families]
    clean = "Take it, clean it at a sinkbasin, then put it where it belongs."
    """
    if file:
        return Handbook(read_handbook(Path(file), world))
    if not world.handbook:
        raise TacitError(
            f"world {world.name!r} has no handbook: write one (--handbook FILE), or give its Environment `handbook=…`."
        )
    return Handbook(world.handbook)


def read_handbook(path: Path, world: Environment) -> Mapping[str, str]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TacitError(f"cannot read the handbook {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TacitError(f"the handbook {path} is not TOML: {error}.") from error
    for key in document:
        if key not in ("world", "general", "families"):
            raise unknown(f"entry of the handbook {path}", key, ("world", "general", "families"))
    if document.get("world", world.name) != world.name:
        raise TacitError(f"the handbook {path} is for world {document['world']!r}, but this is {world.name!r}.")
    families = document.get("families", {})
    if not isinstance(families, dict):
        raise TacitError(f"the handbook {path} has {families!r} for families; write them as a table, [families].")
    for family in families:
        if family not in world.families:
            raise unknown(f"family of world {world.name!r}, in the handbook {path},", family, world.families)
    pages = {"": document.get("general", ""), **families}
    for name, text in pages.items():
        if not isinstance(text, str):
            raise TacitError(f"the handbook {path} has {text!r} for {name or 'general'}, which is not a text.")
    pages = {name: text for name, text in pages.items() if text.strip()}
    if not pages:
        raise TacitError(f"the handbook {path} is empty: write a general text, or one under [families].")
    for family in pages:
        if (length := len(Handbook(pages).page(family))) > LONGEST_NOTE:
            size = f"the text for {family or 'every family'} has {length} characters"
            raise TacitError(f"the handbook {path}: {size}, but a prompt takes at most {LONGEST_NOTE}; shorten it.")
    return pages


@dataclass(frozen=True)
class HandbookConditions(Conditions):
    """Every member of a group reads the handbook's page for its family."""

    handbook: Handbook

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        return (self.condition(task),) * size

    def condition(self, task: Task) -> Condition:
        return Condition(SKILL_CONDITION, self.handbook.page(task.family), "handbook")

    @property
    def evaluated(self) -> Mapping[str, Callable[[Task], Condition]]:
        return {SKILL_CONDITION: self.condition}
