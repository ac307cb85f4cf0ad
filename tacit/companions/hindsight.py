"""OPID's hindsight. Analyzers read finished episodes and return an episode skill, and step skills for the critical steps. Also
the companion that runs the analyzer, skill routing, teacher prompts, and handbooks."""

from __future__ import annotations

import ast
import json
import re
import time
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Literal

import numpy as np

from tacit.companions.answers import Answer, AnswerCache, answer_key, ask_all, drop_middle_turns, quote_record, to_json_line
from tacit.core.errors import TacitError, unknown
from tacit.core.files import read_json
from tacit.core.hindsight import Lesson
from tacit.core.method import Companion, Conditions
from tacit.core.progress import is_unicode
from tacit.core.protocols import Policy, Request, Sampling, SamplingPolicy
from tacit.core.seeds import derive
from tacit.core.types import Condition, Group, IterationInfo, Skills, Task, Trajectory
from tacit.core.world import Environment, Expert
from tacit.prompts.history import LONGEST_NOTE, insert_lesson
from tacit.rollout.encoding import encode_prompts, fit_prompt

TEXT_LIMITS = (None, 600)
"""maximum characters of an observation or a response; the second is tried if the question does not fit with the first"""


def render_question(trajectory: Trajectory, max_steps: int, max_chars: int, limit: int | None = None) -> str:
    """The analyzer's prompt for one episode. Its turns take about `max_chars` characters; middle turns are dropped first."""

    def shorten(text: str) -> str:
        if limit is None or len(text) <= limit:
            return text
        return text[:limit] + f" [{len(text) - limit} more characters]"

    turns = []
    for t, step in enumerate(trajectory.steps):
        turn: dict[str, object] = {"step": t, "saw": shorten(step.observation.text), "wrote": shorten(step.completion.text)}
        turn |= {"action": shorten(step.action)} | ({} if step.effective else {"refused": True})
        last = {"then saw": shorten(trajectory.final.text)} if t + 1 == len(trajectory) else {}
        turns.append(to_json_line(turn | last))
    kept = drop_middle_turns(turns, max_chars)
    head = [f"Task: {to_json_line(trajectory.task.goal)}", f"Outcome: {'success' if trajectory.success else 'failure'}"]
    if len(kept) < len(turns):
        head.append(f"Steps left out for length: {', '.join(str(t) for t, turn in enumerate(turns) if turn not in kept)}")
    return quote_record(render_request(trajectory.success, max_steps), kept, head)


def render_request(success: bool, most: int) -> str:
    lesson = (
        "the workflow that made it work: which decisions, in which order, so that the same kind of task can be done again"
        if success
        else "what to avoid: the mistake that cost the episode, and the signs by which it can be noticed in time"
    )
    return f"""An agent has finished an episode. Look back on it and answer with one JSON object and nothing else:

{{"episode_summary": "...", "episode_skill": "...", "step_skills": {{"0": "...", "3": "..."}}}}

episode_summary  what happened, in a sentence or two.
episode_skill    {lesson}.
step_skills      advice for the steps on which the outcome turned, at most {most} of them. A key is the number of a step as
                 below (the first is 0); its value is one short imperative sentence that tells the agent what to do at
                 that step. Judge by the task and by the whole episode, also by what came after the step, what it should have
                 done. Write advice that can be followed there, not a report of what happened."""


_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_STEP = re.compile(r"\s*0*([0-9]{1,9})\s*")
MAX_ANSWER_CHARS = 40_000  # only this many characters at the end of an answer are parsed
MAX_SKILL_CHARS = 2000  # longer skills are cut


class UnusableAnswer(Exception):
    """An analyzer's answer without a valid skill."""


def parse_skills(answer: str, steps: int, max_steps: int) -> Skills:
    """The episode skill and the first `max_steps` step skills. Invalid ones are skipped, as in OPID's release."""
    fields = _find_skills(answer)
    by_step: dict[int, str] = {}
    step_skills = fields.get("step_skills")
    for key, value in step_skills.items() if isinstance(step_skills, dict) else ():
        number, skill = _STEP.fullmatch(str(key)), _clean_text(value)
        if number is not None and int(number[1]) < steps and skill:
            by_step[int(number[1])] = skill
    first = dict(list(by_step.items())[:max_steps])
    skills = Skills(_clean_text(fields.get("episode_skill")), first, _clean_text(fields.get("episode_summary")))
    if not skills:
        raise UnusableAnswer("the JSON object has no episode_skill and no valid step skill")
    return skills


def _find_skills(answer: str) -> dict:
    """The last object with skills. Trailing commas, line breaks in strings and Python's quotes are accepted."""
    text = answer[-MAX_ANSWER_CHARS:]
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        raise UnusableAnswer(f"no JSON object in {answer[:60]!r}")
    decoder = json.JSONDecoder(strict=False)  # strings may contain line breaks
    for variant in (text, _TRAILING_COMMA.sub(r"\1", text)):
        last, at = None, variant.find("{")
        while at >= 0:
            next_at = at + 1
            try:
                value, end_at = decoder.raw_decode(variant, at)
                if _has_skills(value):  # otherwise the object may be nested in this one
                    last, next_at = value, end_at
            except RecursionError:
                break
            except ValueError:
                pass
            at = variant.find("{", next_at)
        if last is not None:
            return last
    try:
        value = ast.literal_eval(text[start : end + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        value = None
    if _has_skills(value):
        return value
    raise UnusableAnswer(f"no complete JSON object with an episode_skill in {text[start:][:60]!r}")


def _has_skills(value: object) -> bool:
    return isinstance(value, dict) and ("episode_skill" in value or "step_skills" in value)


def _clean_text(value: object) -> str:
    """A field as text, cut to MAX_SKILL_CHARS; empty if it is blank or contains a lone surrogate."""
    text = str(value) if value and not isinstance(value, bool) else ""
    return text.strip()[:MAX_SKILL_CHARS] if is_unicode(text) else ""


ATTEMPTS = 2  # questions per episode; after that the episode has no skill
CHARACTERS_PER_TOKEN = 3  # first estimate for a question; if it does not fit, more turns are dropped
MIN_ANSWER_TOKENS = 64  # a usable answer does not fit into fewer


@dataclass(frozen=True)
class Analysis:
    skills: Skills = field(default_factory=Skills)
    problem: str = ""  # why there is no skill, or no episode skill


Analyses = tuple[list[Analysis], list[Answer]]  # (one analysis per episode, in order; new answers of a model, for their cost)


class Analyzer(ABC):
    def check(self, policy: Policy) -> None:  # noqa: B027
        """Raise a TacitError if it cannot work with this policy. Called before the first rollout."""

    @abstractmethod
    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], Analyses]:
        """Start the analysis. Returns a function that waits for the result."""


@dataclass(frozen=True)
class RuleAnalyzer(Analyzer):
    rule: Callable[[Trajectory], Skills]
    max_steps: int = 5

    @classmethod
    def of(cls, world: Environment, max_steps: int) -> RuleAnalyzer:
        if world.hindsight is None:
            raise TacitError(
                f"world {world.name!r} has no hindsight rule. Let a model analyze episodes (--analyzer policy, or --analyzer "
                "model with a [policies.analyzer] table), or give its Environment `hindsight=…`."
            )
        return cls(world.hindsight, max_steps)

    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], Analyses]:
        analyses = []
        for trajectory in trajectories:
            try:
                skills = self.rule(trajectory)
                analyses.append(Analysis(replace(skills, steps=dict(sorted(skills.steps.items())[: self.max_steps]))))
            except Exception as error:  # a user's rule: only this episode has no skill
                analyses.append(Analysis(problem=f"{type(error).__name__}: {error}"))
        return lambda: (analyses, [])


@dataclass
class ModelAnalyzer(Analyzer):
    """Asks a model about each episode, and a second time if the answer is unusable.

    A remote model (an endpoint) works in the background. A local one blocks, because it uses the same device.
    """

    model: Callable[[], Policy] | None  # None: the trained policy
    max_steps: int = 5
    temperature: float = 0.4
    max_tokens: int = 4096
    cache_dir: Path | None = None  # for answers; None keeps them in memory

    def __post_init__(self) -> None:
        self._model_digest: object = None

    @cached_property
    def _answers(self) -> AnswerCache:
        """Opened on first use, so that building a method opens nothing."""
        return AnswerCache(self.cache_dir)

    def check(self, policy: Policy) -> None:
        """Raise if the model's context has no room for a question and its answer."""
        model = self.model() if self.model else policy
        length, limit = len(model.encode_prompt(render_request(True, self.max_steps))), model.context_limit
        if length + self.max_tokens < limit:
            return
        free = limit - length - 1
        shorter = f"Lower --analyzer-tokens to {free // 2} or so, or take" if free // 2 >= MIN_ANSWER_TOKENS else "Take"
        raise TacitError(
            f"the analyzer's context has {limit} tokens; the question alone takes {length}, and an answer up to "
            f"{self.max_tokens} (--analyzer-tokens). {shorter} a model with a longer context, or --analyzer rule."
        )

    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], Analyses]:
        analyzer = self.model() if self.model else policy
        future: Future[Analyses] = Future()

        def analyze() -> None:
            analyses, answers = [Analysis(problem="not asked")] * len(trajectories), list[Answer]()
            try:
                for attempt in range(ATTEMPTS):
                    if left := [i for i, analysis in enumerate(analyses) if analysis.problem]:
                        again, new_answers = self._ask([trajectories[i] for i in left], analyzer, info, attempt)
                        answers += new_answers
                        for i, new in zip(left, again, strict=True):
                            analyses[i] = Analysis(new.skills or analyses[i].skills, new.problem)
                future.set_result((analyses, answers))
            except BaseException as error:  # raised by future.result
                future.set_exception(error)

        if analyzer.elsewhere:  # a daemon does not delay the exit of a stopped run
            Thread(target=analyze, name="hindsight", daemon=True).start()
        else:
            analyze()
        return future.result

    def _ask(self, trajectories: Sequence[Trajectory], analyzer: Policy, info: IterationInfo, attempt: int) -> Analyses:
        if self.model and self._model_digest is None:  # it is not trained, so its digest is fixed
            self._model_digest = analyzer.digest()
        model = self._model_digest or (info.seed, info.iteration)
        room = analyzer.context_limit - self.max_tokens
        questions = [self._question(trajectory, analyzer, room) for trajectory in trajectories]
        keys = [answer_key(model, self.temperature, self.max_tokens, text, attempt) for text, _ in questions]
        prompts = {key: prompt for key, (_, prompt) in zip(keys, questions, strict=True) if key not in self._answers}
        too_long = {key for key, prompt in prompts.items() if len(prompt) > room}
        fitting = {k: Request(p, derive(info.seed, "hindsight", k)) for k, p in prompts.items() if k not in too_long}
        answers = ask_all(analyzer, Sampling(self.temperature, max_tokens=self.max_tokens), fitting, self._answers)
        analyses = []
        for key, trajectory in zip(keys, trajectories, strict=True):
            if key in too_long:
                analyses.append(Analysis(problem="the episode does not fit into the analyzer's context"))
                continue
            try:
                cached = self._answers.get(key)
                skills = parse_skills(cached.text if cached else "", len(trajectory), self.max_steps)
                analyses.append(Analysis(skills, "" if skills.episode else "the answer has no episode_skill"))
            except UnusableAnswer as error:
                analyses.append(Analysis(problem=str(error)))
        return analyses, list(answers.values())

    def _question(self, trajectory: Trajectory, analyzer: Policy, room: int) -> tuple[str, np.ndarray]:
        """The question about an episode and its tokens. Drops turns until it fits or two are left, then shortens texts."""
        text, prompt = "", np.zeros(0, np.int64)
        for limit in TEXT_LIMITS:
            characters, shortest = max(1, room) * CHARACTERS_PER_TOKEN, None
            while text != shortest:
                text = render_question(trajectory, self.max_steps, characters, limit)
                prompt = analyzer.encode_prompt(text)
                if len(prompt) <= room:
                    return text, prompt
                shortest = shortest or render_question(trajectory, self.max_steps, 0, limit)
                characters = characters * 3 // 4
        return text, prompt


class Hindsight(Companion):
    """`observe` starts the analysis of a batch; the first request for a skill waits for it. The next batch replaces it."""

    name = "hindsight"
    has_state = False
    read_in_rollouts = False

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._trajectories: list[Trajectory] = []
        self._result: Callable[[], Analyses] = lambda: ([], [])
        self._analyses: dict[int, Analysis] | None = {}
        self._answers: list[Answer] = []
        self._waited_s = 0.0
        self.examples: dict[str, str] = {}  # the most common reason for a missing skill, for the alarm `unskilled`

    def check(self, policy: Policy) -> None:
        self._analyzer.check(policy)

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        self._trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        self._waited_s, self._analyses = 0.0, None
        self._result = self._analyzer.begin(self._trajectories, policy, info)
        return {}

    def analysis(self, trajectory: Trajectory) -> Analysis:
        if self._analyses is None:
            began = time.perf_counter()
            analyses, self._answers = self._result()
            self._waited_s = time.perf_counter() - began
            self._analyses = {id(t): a for t, a in zip(self._trajectories, analyses, strict=True)}
        return self._analyses.get(id(trajectory)) or Analysis(problem="no episode of this batch")

    def skills(self, trajectory: Trajectory) -> Skills:
        return self.analysis(trajectory).skills

    def other_task(self, trajectory: Trajectory) -> Trajectory | None:
        """The next episode of the batch with another task, for a placebo; None if there is no other task."""
        index = next((i for i, t in enumerate(self._trajectories) if t is trajectory), 0)
        after = self._trajectories[index + 1 :] + self._trajectories[:index]
        return next((other for other in after if other.task.id != trajectory.task.id), None)

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        analyses = [self.analysis(trajectory) for trajectory in self._trajectories]
        if not analyses:
            return {}
        failed = Counter(analysis.problem for analysis in analyses if analysis.problem and not analysis.skills)
        self.examples = {"unskilled": failed.most_common(1)[0][0]} if failed else {}
        return {
            "hindsight/critical_steps": float(np.mean([len(a.skills.steps) for a in analyses])),
            "hindsight/without_skill": sum(failed.values()) / len(analyses),
            "hindsight/asked": float(len(self._answers)),
            "hindsight/tokens_read": float(sum(answer.read for answer in self._answers)),
            "hindsight/tokens_written": float(sum(answer.written for answer in self._answers)),
            "hindsight/seconds_waited": round(self._waited_s, 3),
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
    """Hindsight's skills, routed to the steps, or control notes to compare them with.

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
        source = self.hindsight.other_task(trajectory) if self.notes == "placebo" else trajectory
        skills = self.hindsight.skills(source) if source else Skills()
        if self.notes == "empty":
            skills = Skills(skills.episode and EMPTY, dict.fromkeys(skills.steps, EMPTY))
        return [route(skills, t, self.routing) for t in range(len(trajectory))]

    def prompts(self, group: Group, policy: SamplingPolicy) -> list[list[np.ndarray]]:
        return render_teacher_prompts(group, self.lessons, policy, self.instructed)


def advise(expert: Callable[[Task], Expert], trajectory: Trajectory) -> list[str]:
    """The expert's action at each recorded observation; empty texts from the first step at which the expert fails."""
    actions: list[str] = []
    adviser = expert(trajectory.task)
    for step in trajectory.steps:
        try:
            actions.append(adviser.act(step.observation))
        except Exception:  # the policy may reach states that the expert does not handle
            return actions + [""] * (len(trajectory) - len(actions))
    return actions


@dataclass(frozen=True)
class Handbook:
    """A fixed skill per task family, the same at every step."""

    pages: Mapping[str, str]  # family -> its text; the empty key has the general text
    keywords: Mapping[str, Sequence[str]] = field(default_factory=dict)  # page -> keywords that a goal may contain

    def page(self, task: Task) -> str:
        """The general text, the family's page, and pages with a keyword in the goal, as far as they fit into a prompt."""
        goal, text = task.goal.lower(), ""
        matching = [name for name, words in self.keywords.items() if any(word in goal for word in words)]
        for name in dict.fromkeys(("", task.family, *matching)):
            longer = "\n".join(filter(None, (text, self.pages.get(name, ""))))
            text = longer if len(longer) <= LONGEST_NOTE else text
        return text

    def lessons(self, trajectory: Trajectory) -> Sequence[tuple[Lesson, ...]]:
        page = self.page(trajectory.task)
        return [(Lesson(task=page),) if page else ()] * len(trajectory)

    def prompts(self, group: Group, policy: SamplingPolicy) -> list[list[np.ndarray]]:
        return render_teacher_prompts(group, self.lessons, policy)


def render_teacher_prompts(
    group: Group, lessons: Callable[[Trajectory], Sequence[Sequence[Lesson]]], policy: SamplingPolicy, instructed: bool = False
) -> list[list[np.ndarray]]:
    """The teacher's prompts H(h, s) of every step. The oldest history is dropped first; a prompt that still does not fit is
    skipped."""
    by_step = [at_step for trajectory in group.trajectories for at_step in lessons(trajectory)]
    encoded: list[list[np.ndarray]] = [[] for _ in group.steps]
    steps = zip(group.steps, by_step, strict=True)
    injected = [(n, step, lesson) for n, (step, at_step) in enumerate(steps) for lesson in at_step]
    prompts = [insert_lesson(step.prompt, lesson, instructed) for _, step, lesson in injected]
    for (n, step, _), prompt, tokens in zip(injected, prompts, encode_prompts(prompts, policy), strict=True):
        _, tokens, fits = fit_prompt(prompt, policy, len(step.completion.tokens), tokens)
        if fits:
            encoded[n].append(tokens)
    return encoded


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
    path = Path(file).expanduser()
    try:
        loaded = read_skill_directory(path, world) if path.is_dir() else Handbook(read_handbook(path, world))
    except OSError as error:
        raise TacitError(f"cannot read the handbook {error.filename or path}: {error.strerror}.") from error
    except ValueError as error:  # of TOML, JSON and UTF-8
        raise TacitError(f"the handbook {path} is not {'JSON' if path.is_dir() else 'TOML'}: {error}.") from error
    if not loaded.pages:
        raise TacitError(f"the handbook {path} is empty: write a general text, or one for a family.")
    general = loaded.pages.get("", "")
    for name, text in loaded.pages.items():
        if (length := len(f"{general}\n{text}" if name and general else text)) > LONGEST_NOTE:
            size = f"the text for {name or 'every family'} has {length} characters"
            raise TacitError(f"the handbook {path}: {size}, but a prompt takes at most {LONGEST_NOTE}; shorten it.")
    return loaded


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
    mapping = read_json(path / MAPPING)
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
    keywords_of = {f"task type {name}": [str(word).lower() for word in words] for name, words in keywords.items() if words}
    pages |= {f"task type {name}": texts.get(skill_of.get(name, ""), "") for name in keywords}
    return Handbook({name: text for name, text in pages.items() if text}, keywords_of)


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
