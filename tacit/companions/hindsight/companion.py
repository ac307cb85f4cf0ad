"""OPID's hindsight: the companion that has episodes analyzed, skill routing, teacher prompts, and handbooks."""

from __future__ import annotations

import json
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
from tacit.core.world import Environment, Expert
from tacit.prompts.conversation import LONGEST_NOTE, insert_lesson
from tacit.rollout.encoding import fit_prompt


class Hindsight(Companion):
    """`observe` starts the analysis of a batch; the first request for a skill waits for it. Nothing is kept afterwards."""

    name = "hindsight"
    has_state = False
    read_in_rollouts = False

    def __init__(self, analyzer: Analyzer, prices: Prices = FREE) -> None:
        self._analyzer, self._prices = analyzer, prices
        self._trajectories: list[Trajectory] = []
        self._result: Callable[[], list[Analysis]] = list
        self._found: dict[int, Analysis] | None = {}
        self._waited = 0.0
        self.examples: dict[str, str] = {}  # the most common reason for a missing skill, for the alarm `unskilled`

    def check(self, policy: Policy) -> None:
        self._analyzer.check(policy)

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        self._trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        self._waited, self._found = 0.0, None
        self._result = self._analyzer.begin(self._trajectories, policy, info)
        return {}

    def analysis(self, trajectory: Trajectory) -> Analysis:
        if self._found is None:
            began = time.perf_counter()
            analyses = self._result()
            self._waited = time.perf_counter() - began
            self._found = {id(t): a for t, a in zip(self._trajectories, analyses, strict=True)}
        return self._found.get(id(trajectory)) or Analysis(problem="no episode of this batch")

    def skills(self, trajectory: Trajectory) -> Skills:
        return self.analysis(trajectory).skills

    def other_task(self, trajectory: Trajectory) -> Trajectory | None:
        """The next episode of the batch with another task, for a placebo; None if there is no other task."""
        place = next((i for i, own in enumerate(self._trajectories) if own is trajectory), 0)
        after = self._trajectories[place + 1 :] + self._trajectories[:place]
        return next((other for other in after if other.task.id != trajectory.task.id), None)

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        analyses = [self.analysis(trajectory) for trajectory in self._trajectories]
        if not analyses:
            return {}
        failed = Counter(analysis.problem for analysis in analyses if analysis.problem and not analysis.skills)
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


Notes = Literal["true", "empty", "placebo", "oracle"]
EMPTY = "..."  # the text of a note that says nothing


@dataclass(frozen=True)
class RoutedSkills:
    """Hindsight's skills, routed to the steps; or notes to compare them with.

    empty     EMPTY in the place of each skill
    placebo   the skills of an episode of another task
    oracle    at each step, what the expert would do there
    """

    hindsight: Hindsight = field(compare=False)
    routing: Routing = "critical_first"
    notes: Notes = "true"
    expert: Callable[[Task], Expert] | None = field(default=None, compare=False)
    instructed: bool = False  # a line before each skill says to follow it

    def lessons(self, trajectory: Trajectory) -> Sequence[tuple[Lesson, ...]]:
        if self.notes == "oracle":
            assert self.expert is not None, "the oracle needs an expert"
            return [(Lesson(step=action),) if action else () for action in advise(self.expert, trajectory)]
        told = self.hindsight.other_task(trajectory) if self.notes == "placebo" else trajectory
        skills = self.hindsight.skills(told) if told else Skills()
        if self.notes == "empty":
            skills = Skills(skills.episode and EMPTY, dict.fromkeys(skills.steps, EMPTY))
        return [route(skills, t, self.routing) for t in range(len(trajectory))]

    def prompts(self, group: Group, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        return render_teacher_prompts(group, self.lessons, tokenizer, self.instructed)


def advise(expert: Callable[[Task], Expert], trajectory: Trajectory) -> list[str]:
    """What the expert would have done at each step, had it seen these observations. Empty from where it gives up."""
    told: list[str] = []
    adviser = expert(trajectory.task)
    for step in trajectory.steps:
        try:
            told.append(adviser.act(step.observation))
        except Exception:  # an expert may not know a state that only a policy gets into
            return told + [""] * (len(trajectory) - len(told))
    return told


@dataclass(frozen=True)
class Handbook:
    """A fixed skill per task family, the same at every step."""

    pages: Mapping[str, str]  # family -> its text; under the empty name, what holds for all
    keywords: Mapping[str, Sequence[str]] = field(default_factory=dict)  # page -> words; it is also for goals with one of these

    def page(self, task: Task) -> str:
        """The general text, the family's own, and those whose keywords are in the goal, as far as they fit into a prompt."""
        goal, found = task.goal.lower(), ""
        named = [name for name, words in self.keywords.items() if any(word in goal for word in words)]
        for name in dict.fromkeys(("", task.family, *named)):
            longer = "\n".join(filter(None, (found, self.pages.get(name, ""))))
            found = longer if len(longer) <= LONGEST_NOTE else found
        return found

    def lessons(self, trajectory: Trajectory) -> Sequence[tuple[Lesson, ...]]:
        page = self.page(trajectory.task)
        return [(Lesson(task=page),) if page else ()] * len(trajectory)

    def prompts(self, group: Group, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        return render_teacher_prompts(group, self.lessons, tokenizer)


def render_teacher_prompts(
    group: Group,
    lessons: Callable[[Trajectory], Sequence[Sequence[Lesson]]],
    tokenizer: Tokenizer,
    instructed: bool = False,
) -> list[list[np.ndarray]]:
    """The teacher's prompts H(h, s) of every step. History is dropped, oldest first; what still does not fit is left out."""
    found = []
    for trajectory in group.trajectories:
        for step, at_step in zip(trajectory.steps, lessons(trajectory), strict=True):
            taught = [insert_lesson(step.prompt, lesson, instructed) for lesson in at_step]
            fitted = [fit_prompt(prompt, tokenizer, len(step.completion.tokens)) for prompt in taught]
            found.append([tokens for _, tokens, fits in fitted if fits])
    return found


SKILL_CONDITION = "skill"  # the condition of an episode whose agent reads the handbook


def load_handbook(world: Environment, file: str = "") -> Handbook:
    """The handbook in a TOML file or in a directory of SDAR's layout, or the world's own.

    world = "alfworld"
    general = "Look where such things usually are."

    [families]
    clean = "Take it, clean it at a sinkbasin, then put it where it belongs."
    """
    if not file:
        if not world.handbook:
            raise TacitError(
                f"world {world.name!r} has no handbook: write one (--handbook FILE), or give its Environment `handbook=…`."
            )
        return Handbook(world.handbook)
    path = Path(file)
    try:
        found = read_skill_directory(path, world) if path.is_dir() else Handbook(read_handbook(path, world))
    except OSError as error:
        raise TacitError(f"cannot read the handbook {error.filename or path}: {error.strerror}.") from error
    except ValueError as error:  # of TOML, JSON and UTF-8
        raise TacitError(f"the handbook {path} is not {'JSON' if path.is_dir() else 'TOML'}: {error}.") from error
    if not found.pages:
        raise TacitError(f"the handbook {path} is empty: write a general text, or one for a family.")
    general = found.pages.get("", "")
    for name, text in found.pages.items():
        if (length := len(f"{general}\n{text}" if name and general else text)) > LONGEST_NOTE:
            size = f"the text for {name or 'every family'} has {length} characters"
            raise TacitError(f"the handbook {path}: {size}, but a prompt takes at most {LONGEST_NOTE}; shorten it.")
    return found


def read_handbook(path: Path, world: Environment) -> Mapping[str, str]:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
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
    return {name: text for name, text in pages.items() if text.strip()}


MAPPING, MAPPING_TABLES = "skill_mapping.json", ("skill_files", "task_to_skill", "task_keywords")


def read_skill_directory(path: Path, world: Environment) -> Handbook:
    """A directory of skill files as SDAR released them for ALFWorld, WebShop and search.

    skill_mapping.json   skill_files     {"general_skills": "general_skills.md", "heat": "heat.md"}
                         task_to_skill   {"pick_heat_then_place_in_recep": "heat"}
                         task_keywords   {"apparel": ["shirt", "dress"]}                        may be missing

    A family gets the first page whose task type is part of the family's published name. Keywords are looked for in the goal.
    """
    if not (path / MAPPING).is_file():
        raise TacitError(
            f"the handbook {path} is a directory without {MAPPING}; name a TOML file, or one of SDAR's directories."
        )
    mapping = json.loads((path / MAPPING).read_text(encoding="utf-8"))
    tables = [mapping.get(key, {}) for key in MAPPING_TABLES] if isinstance(mapping, dict) else []
    if not tables or not tables[0] or not all(isinstance(table, dict) for table in tables):
        raise TacitError(f"{path / MAPPING} must have the tables {', '.join(MAPPING_TABLES[:2])}, as in SDAR's release.")
    files, skill_of, keywords = tables
    texts = {name: (path / str(file)).read_text(encoding="utf-8").strip() for name, file in files.items()}
    pages = {"": texts.get("general_skills", "")}
    for family in world.families:
        published = world.published_families.get(family, family)
        skill = next((skill for kind, skill in skill_of.items() if kind in published and not keywords.get(kind)), "")
        pages[family] = texts.get(skill, "")
    # A page found by its keywords has the name of its task type, which no family has.
    named = {f"task type {name}": [str(word).lower() for word in words] for name, words in keywords.items() if words}
    pages |= {f"task type {name}": texts.get(skill_of.get(name, ""), "") for name in keywords}
    return Handbook({name: text for name, text in pages.items() if text}, named)


@dataclass(frozen=True)
class HandbookConditions(Conditions):
    """Every member of a group reads the handbook's page for its family."""

    handbook: Handbook

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        return (self.condition(task),) * size

    def condition(self, task: Task) -> Condition:
        return Condition(SKILL_CONDITION, self.handbook.page(task), "handbook")

    @property
    def evaluated(self) -> Mapping[str, Callable[[Task], Condition]]:
        return {SKILL_CONDITION: self.condition}
