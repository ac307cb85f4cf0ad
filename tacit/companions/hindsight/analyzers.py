"""OPID's analyzers: they read finished episodes and return an episode skill and step skills for the critical steps.

RuleAnalyzer    the world's own rule (`Environment.hindsight`): no model, deterministic
ModelAnalyzer   any policy that can be sampled: an endpoint, another local model, or the trained policy itself
"""

from __future__ import annotations

import ast
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Literal

import numpy as np

from tacit.companions.answers import Answer, AnswerCache, answer_key, drop_middle_turns, quote_record, to_json_line
from tacit.core.errors import TacitError
from tacit.core.hindsight import Skills
from tacit.core.progress import is_unicode
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.types import IterationInfo, Trajectory
from tacit.core.world import Environment
from tacit.rollout.encoding import open_scheduler

Wording = Literal["v1", "v2"]
"""version of the texts: v2 has the whole episode in view, and its skills come with an instruction to use them; v1 is that of
older runs"""
LIMITS: Mapping[Wording, tuple[int | None, ...]] = {"v1": (600,), "v2": (None, 600)}
"""most characters of an observation or a response; a later limit is tried if the question does not fit"""


def render_question(trajectory: Trajectory, most: int, room: int, wording: Wording = "v2", limit: int | None = None) -> str:
    """The analyzer's prompt for one episode. Its turns take about `room` characters; turns in the middle are dropped first."""

    def shorten(text: str) -> str:
        if limit is None or len(text) <= limit:
            return text
        return text[:limit] + ("" if wording == "v1" else f" [{len(text) - limit} more characters]")

    turns = []
    for t, step in enumerate(trajectory.steps):
        said: dict[str, object] = {"step": t, "saw": shorten(step.observation.text), "wrote": shorten(step.completion.text)}
        said |= {"action": shorten(step.action)} | ({} if step.effective else {"refused": True})
        last = {"then saw": shorten(trajectory.final.text)} if t + 1 == len(trajectory) else {}
        turns.append(to_json_line(said | last))
    kept = drop_middle_turns(turns, room)
    head = [f"Task: {to_json_line(trajectory.task.goal)}", f"Outcome: {'success' if trajectory.success else 'failure'}"]
    if wording == "v2" and len(kept) < len(turns):
        head.append(f"Steps left out for length: {', '.join(str(t) for t, turn in enumerate(turns) if turn not in kept)}")
    return quote_record(render_request(trajectory.success, most, wording), kept, head)


def render_request(success: bool, most: int, wording: Wording = "v2") -> str:
    wanted = (
        "the workflow that made it work: which decisions, in which order, so that the same kind of task can be done again"
        if success
        else "what to avoid: the mistake that cost the episode, and the signs by which it can be noticed in time"
    )
    advice = {
        "v1": """its value is one short imperative sentence that the agent could have followed at that
                 step, knowing only what it could see there. Do not retell what happened.""",
        "v2": """its value is one short imperative sentence that tells the agent what to do at
                 that step. Judge by the task and by the whole episode, also by what came after the step, what it should have
                 done. Write advice that can be followed there, not a report of what happened.""",
    }[wording]
    return f"""An agent has finished an episode. Look back on it and answer with one JSON object and nothing else:

{{"episode_summary": "...", "episode_skill": "...", "step_skills": {{"0": "...", "3": "..."}}}}

episode_summary  what happened, in a sentence or two.
episode_skill    {wanted}.
step_skills      advice for the steps on which the outcome turned, at most {most} of them. A key is the number of a step as
                 below (the first is 0); {advice}"""


_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_STEP = re.compile(r"\s*0*([0-9]{1,9})\s*")
MAX_ANSWER_CHARS = 40_000  # parsed of an answer, from its end; far more than it can have
MAX_SKILL_CHARS = 2000  # the rest of a skill is cut off


class UnusableAnswer(Exception):
    """An analyzer's answer without a valid skill."""


def parse_skills(answer: str, steps: int, most: int) -> Skills:
    """The first `most` step skills and the episode skill. As lenient as OPID's release: what is not valid is left out."""
    found = _object(answer)
    by_step: dict[int, str] = {}
    step_skills = found.get("step_skills")
    for key, value in step_skills.items() if isinstance(step_skills, dict) else ():
        number, skill = _STEP.fullmatch(str(key)), _text(value)
        if number is not None and int(number[1]) < steps and skill:
            by_step[int(number[1])] = skill
    first = dict(list(by_step.items())[:most])
    skills = Skills(_text(found.get("episode_skill")), first, _text(found.get("episode_summary")))
    if not skills:
        raise UnusableAnswer("the JSON object has no episode_skill and no valid step skill")
    return skills


def _object(answer: str) -> dict:
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
                one, after = decoder.raw_decode(variant, at)
                if _has_skills(one):  # otherwise the object may be nested in this one
                    last, next_at = one, after
            except RecursionError:
                break
            except ValueError:
                pass
            at = variant.find("{", next_at)
        if last is not None:
            return last
    try:
        one = ast.literal_eval(text[start : end + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        one = None
    if _has_skills(one):
        return one
    raise UnusableAnswer(f"no complete JSON object with an episode_skill in {text[start:][:60]!r}")


def _has_skills(one: object) -> bool:
    return isinstance(one, dict) and ("episode_skill" in one or "step_skills" in one)


def _text(value: object) -> str:
    """A field as text, cut to MAX_SKILL_CHARS; empty if it says nothing or has half a character (a lone surrogate) in it."""
    text = str(value) if value and not isinstance(value, bool) else ""
    return text.strip()[:MAX_SKILL_CHARS] if is_unicode(text) else ""


ATTEMPTS = 2  # questions per episode; after that the episode has no skill
CHARACTERS_PER_TOKEN = 3  # first estimate for a question; one that does not fit loses more turns
MIN_ANSWER_TOKENS = 64  # below this, no usable answer fits


@dataclass(frozen=True)
class Analysis:
    skills: Skills = field(default_factory=Skills)
    problem: str = ""  # why there is no skill, or no episode skill
    asked: int = 0  # questions put to a model; 0 if the answer was cached
    written: int = 0  # answer tokens
    read: int = 0  # question tokens


class Analyzer(ABC):
    def check(self, policy: Policy) -> None:  # noqa: B027
        """Raise a TacitError if it cannot work with this policy. Called before anything is played."""

    @abstractmethod
    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], list[Analysis]]:
        """Start, and return a function that waits for the result: one analysis per episode, in order."""


@dataclass(frozen=True)
class RuleAnalyzer(Analyzer):
    rule: Callable[[Trajectory], Skills]
    most: int = 5

    @classmethod
    def of(cls, world: Environment, most: int) -> RuleAnalyzer:
        if world.hindsight is None:
            raise TacitError(
                f"world {world.name!r} has no hindsight rule. Let a model analyze episodes (--analyzer policy, or --analyzer "
                "model with a [policies.analyzer] table), or give its Environment `hindsight=…`."
            )
        return cls(world.hindsight, most)

    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], list[Analysis]]:
        found = []
        for trajectory in trajectories:
            try:
                skills = self.rule(trajectory)
                found.append(Analysis(replace(skills, steps=dict(sorted(skills.steps.items())[: self.most]))))
            except Exception as error:  # a user's rule: costs one episode its skill
                found.append(Analysis(problem=f"{type(error).__name__}: {error}"))
        return lambda: found


@dataclass
class ModelAnalyzer(Analyzer):
    """Asks a model about each episode, and once more if the answer is unusable.

    A remote model (an endpoint) works in the background; a local one is waited for, since it needs the same device.
    """

    model: Callable[[], Policy] | None  # None: the trained policy
    most: int = 5
    temperature: float = 0.4
    max_tokens: int = 4096
    kept: Path | None = None  # directory of the answer cache
    wording: Wording = "v2"

    def __post_init__(self) -> None:
        self._answers: AnswerCache | None = None
        self._who: object = None

    def check(self, policy: Policy) -> None:
        """Raise if the model's context has no room for a question and its answer."""
        asked = self.model() if self.model else policy
        least, limit = len(asked.encode_prompt(render_request(True, self.most, self.wording))), asked.context_limit
        if least + self.max_tokens < limit:
            return
        free = limit - least - 1
        shorter = f"Lower --analyzer-tokens to {free // 2} or so, or take" if free // 2 >= MIN_ANSWER_TOKENS else "Take"
        raise TacitError(
            f"the analyzer's context has {limit} tokens; the question alone takes {least}, and an answer up to "
            f"{self.max_tokens} (--analyzer-tokens). {shorter} a model with a longer context, or --analyzer rule."
        )

    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], list[Analysis]]:
        asked = self.model() if self.model else policy
        if self._answers is None:
            self._answers = AnswerCache(self.kept)
        future: Future[list[Analysis]] = Future()

        def analyze() -> None:
            found = [Analysis(problem="not asked")] * len(trajectories)
            try:
                for attempt in range(ATTEMPTS):
                    if left := [i for i, analysis in enumerate(found) if analysis.problem]:
                        answers = self._ask([trajectories[i] for i in left], asked, info, attempt)
                        for i, after in zip(left, answers, strict=True):
                            old = found[i]
                            cost = (old.asked + after.asked, old.written + after.written, old.read + after.read)
                            found[i] = Analysis(after.skills or old.skills, after.problem, *cost)
                future.set_result(found)
            except BaseException as error:  # raised by future.result
                future.set_exception(error)

        if getattr(asked, "elsewhere", False):  # a daemon does not delay the exit of a stopped run
            Thread(target=analyze, name="hindsight", daemon=True).start()
        else:
            analyze()
        return future.result

    def _ask(self, trajectories: Sequence[Trajectory], asked: Policy, info: IterationInfo, attempt: int) -> list[Analysis]:
        assert self._answers is not None
        if self.model and self._who is None:  # it is not trained, so its identity is fixed
            self._who = asked.digest()
        who = self._who or (info.seed, info.iteration)
        room = asked.context_limit - self.max_tokens
        questions = [self._question(trajectory, asked, room) for trajectory in trajectories]
        keys = [answer_key(who, self.temperature, self.max_tokens, text, attempt) for text, _ in questions]
        prompts = {key: prompt for key, (_, prompt) in zip(keys, questions, strict=True) if self._answers.get(key) is None}
        tight = {key for key, prompt in prompts.items() if len(prompt) > room}
        fresh = self._fetch({key: prompt for key, prompt in prompts.items() if key not in tight}, asked, info)
        found = []
        for key, trajectory in zip(keys, trajectories, strict=True):
            got = fresh.pop(key, None)
            cost = Analysis(asked=1, written=got.written, read=got.read) if got else Analysis()
            if key in tight:
                found.append(Analysis(problem="the episode does not fit into the analyzer's context"))
                continue
            try:
                known = self._answers.get(key)
                skills = parse_skills(known.text if known else "", len(trajectory), self.most)
                found.append(replace(cost, skills=skills, problem="" if skills.episode else "the answer has no episode_skill"))
            except UnusableAnswer as error:
                found.append(replace(cost, problem=str(error)))
        return found

    def _question(self, trajectory: Trajectory, asked: Policy, room: int) -> tuple[str, np.ndarray]:
        """The question about an episode and its tokens. Drops turns until it fits or two are left, then shortens texts."""
        text, prompt = "", np.zeros(0, np.int64)
        for limit in LIMITS[self.wording]:
            characters, shortest = max(1, room) * CHARACTERS_PER_TOKEN, None
            while text != shortest:
                text = render_question(trajectory, self.most, characters, self.wording, limit)
                prompt = asked.encode_prompt(text)
                if len(prompt) <= room:
                    return text, prompt
                shortest = shortest or render_question(trajectory, self.most, 0, self.wording, limit)
                characters = characters * 3 // 4
        return text, prompt

    def _fetch(self, prompts: Mapping[str, np.ndarray], asked: Policy, info: IterationInfo) -> dict[str, Answer]:
        """Sample the answers and cache each as it arrives, so that a killed run loses none."""
        assert self._answers is not None
        fresh: dict[str, Answer] = {}
        with closing(open_scheduler(asked, Sampling(self.temperature, max_tokens=self.max_tokens), None)) as scheduler:
            request_ids = {scheduler.submit(Request(p, derive(info.seed, "hindsight", key))): key for key, p in prompts.items()}
            while finished := scheduler.wait():
                for request_id, completion in finished:
                    key = request_ids[request_id]
                    failed = completion.finish == "unusable"  # then no tokens were read
                    read = completion.read or (0 if failed else len(prompts[key]))
                    answer = Answer(completion.text, read, len(completion.tokens))
                    fresh[key] = answer
                    if completion.text.strip():  # after a broken connection, ask again another time
                        self._answers.add(key, answer)
        return fresh
