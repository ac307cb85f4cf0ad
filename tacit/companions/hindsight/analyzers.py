"""OPID's analyzers: they read finished episodes and return an episode skill and step skills for the critical steps.

RuleAnalyzer    the world's own rule (`Environment.hindsight`): no model, deterministic
ModelAnalyzer   any policy that can be sampled: an endpoint, another local model, or the trained policy itself
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

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

MAX_TEXT_CHARS = 600
"""of one observation or response; the rest is cut off"""


def render_question(trajectory: Trajectory, most: int, room: int) -> str:
    """The analyzer's prompt for one episode. Its turns take about `room` characters; turns in the middle are dropped first."""
    turns = drop_middle_turns([_turn(t, trajectory) for t in range(len(trajectory))], room)
    outcome = "success" if trajectory.success else "failure"
    head = [f"Task: {to_json_line(trajectory.task.goal)}", f"Outcome: {outcome}"]
    return quote_record(render_request(trajectory.success, most), turns, head)


def render_request(success: bool, most: int) -> str:
    """The instructions, for a success or a failure."""
    wanted = (
        "the workflow that made it work: which decisions, in which order, so that the same kind of task can be done again"
        if success
        else "what to avoid: the mistake that cost the episode, and the signs by which it can be noticed in time"
    )
    return f"""An agent has finished an episode. Look back on it and answer with one JSON object and nothing else:

{{"episode_summary": "...", "episode_skill": "...", "step_skills": {{"0": "...", "3": "..."}}}}

episode_summary  what happened, in a sentence or two.
episode_skill    {wanted}.
step_skills      advice for the steps on which the outcome turned, at most {most} of them. A key is the number of a step as
                 below (the first is 0); its value is one short imperative sentence that the agent could have followed at that
                 step, knowing only what it could see there. Do not retell what happened."""


def _turn(t: int, trajectory: Trajectory) -> str:
    step = trajectory.steps[t]
    answered = trajectory.steps[t + 1].observation if t + 1 < len(trajectory) else trajectory.final
    return to_json_line(
        {
            "step": t,
            "saw": step.observation.text[:MAX_TEXT_CHARS],
            "wrote": step.completion.text[:MAX_TEXT_CHARS],
            "action": step.action[:MAX_TEXT_CHARS],
            **({} if step.effective else {"refused": True}),
            **({"then saw": answered.text[:MAX_TEXT_CHARS]} if t + 1 == len(trajectory) else {}),
        }
    )


_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_STEP = re.compile(r"\s*0*([0-9]{1,9})\s*")
MAX_ANSWER_CHARS = 40_000
"""parsed of an answer, from its end; far more than it can have"""
MAX_SKILL_CHARS = 2000
"""a longer text is rejected"""


class UnusableAnswer(Exception):
    """An analyzer's answer without a valid skill."""


def parse_skills(answer: str, steps: int, most: int) -> Skills:
    """The skills in an answer about an episode of `steps` steps, with at most the first `most` step skills. Lenient about the
    form around the JSON, strict about its content."""
    found = _object(answer)
    episode = _text(found.get("episode_skill"), "episode_skill")
    summary = found.get("episode_summary")
    step_skills = found.get("step_skills") or {}
    if not isinstance(step_skills, dict):
        raise UnusableAnswer(f"step_skills is a {type(step_skills).__name__}, not an object")
    by_step: dict[int, str] = {}
    for key, value in step_skills.items():
        number = _STEP.fullmatch(key)
        if number is None or not int(number[1]) < steps:
            raise UnusableAnswer(f"step_skills has {key[:40]!r}, and the episode the steps 0 to {steps - 1}")
        by_step[int(number[1])] = _text(value, f"step_skills[{int(number[1])}]")
    kept = dict(sorted(by_step.items())[:most])
    return Skills(episode, kept, summary.strip() if isinstance(summary, str) and is_unicode(summary) else "")


def _object(answer: str) -> dict:
    """The last JSON object with an episode_skill, ignoring fences, remarks, and drafts in a thought around it."""
    text = answer[-MAX_ANSWER_CHARS:]
    if not 0 <= text.find("{") < text.rfind("}"):
        raise UnusableAnswer(f"no JSON object in {answer[:60]!r}")
    found = [_objects(variant) for variant in (text, _TRAILING_COMMA.sub(r"\1", text))]
    for objects in found:
        if with_skill := [one for one in objects if "episode_skill" in one]:
            return with_skill[-1]
    if not any(found):
        raise UnusableAnswer(f"not JSON: {text[text.find('{') :][:60]!r}")
    return next(filter(None, found))[0]


def _objects(text: str) -> list[dict]:
    found, start = [], text.find("{")
    while start >= 0:
        end = start + 1
        try:
            one, after = json.JSONDecoder().raw_decode(text, start)
            found.append(one)
            end = after if "episode_skill" in one else end  # otherwise the object may be nested in this one
        except (ValueError, RecursionError):
            pass
        start = text.find("{", end)
    return found


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UnusableAnswer(f"{field} is {value!r:.40}, not a sentence")
    if not is_unicode(value):
        raise UnusableAnswer(f"{field} has half a character (a lone surrogate) in it")
    if len(value) > MAX_SKILL_CHARS:
        raise UnusableAnswer(f"{field} has {len(value)} characters, more than {MAX_SKILL_CHARS}")
    return value.strip()


ATTEMPTS = 2
"""questions per episode; after that the episode has no skill"""
CHARACTERS_PER_TOKEN = 3
"""first estimate for a question; one that does not fit loses more turns"""
MIN_ANSWER_TOKENS = 64
"""below this, no usable answer fits"""


@dataclass(frozen=True)
class Analysis:
    """The analysis of one episode."""

    skills: Skills = field(default_factory=Skills)
    problem: str = ""
    """why there is no skill"""
    asked: int = 0
    """questions put to a model; 0 if the answer was cached"""
    written: int = 0
    """answer tokens"""
    read: int = 0
    """question tokens"""

    def add_cost(self, earlier: Analysis) -> Analysis:
        """This analysis, with the cost of an earlier attempt added."""
        return replace(
            self, asked=self.asked + earlier.asked, written=self.written + earlier.written, read=self.read + earlier.read
        )


class Analyzer(ABC):
    """Finds what each episode teaches."""

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
        found = [self._analyze(trajectory) for trajectory in trajectories]
        return lambda: found

    def _analyze(self, trajectory: Trajectory) -> Analysis:
        try:
            skills = self.rule(trajectory)
            return Analysis(replace(skills, steps=dict(sorted(skills.steps.items())[: self.most])))
        except Exception as error:  # a user's rule: costs one episode its skill
            return Analysis(problem=f"{type(error).__name__}: {error}")


@dataclass
class ModelAnalyzer(Analyzer):
    """Asks a model about each episode, and once more if the answer is unusable.

    A remote model (an endpoint) works in the background; a local one is waited for, since it needs the same device.
    """

    model: Callable[[], Policy] | None
    """None: the trained policy"""
    most: int = 5
    temperature: float = 0.4
    max_tokens: int = 4096
    kept: Path | None = None
    """directory of the answer cache"""

    def __post_init__(self) -> None:
        self._answers: AnswerCache | None = None
        self._who: object = None

    def check(self, policy: Policy) -> None:
        """Raise if the model's context has no room for a question and its answer."""
        asked = self.model() if self.model else policy
        least, limit = len(asked.encode_prompt(render_request(True, self.most))), asked.context_limit
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
        if getattr(asked, "elsewhere", False):
            return _run_in_thread(lambda: self._analyze(trajectories, asked, info))
        found = self._analyze(trajectories, asked, info)
        return lambda: found

    def _analyze(self, trajectories: Sequence[Trajectory], asked: Policy, info: IterationInfo) -> list[Analysis]:
        found = [Analysis(problem="not asked")] * len(trajectories)
        for attempt in range(ATTEMPTS):
            left = [i for i, analysis in enumerate(found) if analysis.problem]
            if left:
                answers = self._ask([trajectories[i] for i in left], asked, info, attempt)
                for i, after in zip(left, answers, strict=True):
                    found[i] = after.add_cost(found[i])
        return found

    def _ask(self, trajectories: Sequence[Trajectory], asked: Policy, info: IterationInfo, attempt: int) -> list[Analysis]:
        assert self._answers is not None
        if self.model and self._who is None:  # it is not trained, so its identity is fixed
            self._who = getattr(asked, "identity", None) or asked.digest()
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
                found.append(replace(cost, skills=skills))
            except UnusableAnswer as error:
                found.append(replace(cost, problem=str(error)))
        return found

    def _question(self, trajectory: Trajectory, asked: Policy, room: int) -> tuple[str, np.ndarray]:
        """The question about an episode and its tokens. Drops turns until it fits or two are left."""
        characters, shortest = max(1, room) * CHARACTERS_PER_TOKEN, ""
        while True:
            text = render_question(trajectory, self.most, characters)
            prompt = asked.encode_prompt(text)
            if len(prompt) <= room or text == shortest:
                return text, prompt
            shortest = render_question(trajectory, self.most, 0)
            characters = characters * 3 // 4

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


def _run_in_thread(work: Callable[[], list[Analysis]]) -> Callable[[], list[Analysis]]:
    """Run `work` in a daemon thread, which does not delay the exit of a stopped run. Returns a function that waits for it."""
    future: Future[list[Analysis]] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised by future.result
            future.set_exception(error)

    Thread(target=run, name="hindsight", daemon=True).start()
    return future.result
