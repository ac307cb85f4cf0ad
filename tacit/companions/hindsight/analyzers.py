"""Analyzers: who looks back on finished episodes and says what they teach.

by rule      the world's own (`Environment.hindsight`): no model, always the same
by a model   any policy that can be sampled: an endpoint, another local model, or the trained policy itself
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

# What an analyzer is asked, in our words: the episode as it went, three fields to fill in, and the limits of each.

MAX_TEXT_CHARS = 600
"""characters of one observation or response: what matters is said early"""


def render_question(trajectory: Trajectory, most: int, room: int) -> str:
    """The request for one episode, whose turns take about `room` characters: where they do not fit, the middle goes."""
    turns = drop_middle_turns([_turn(t, trajectory) for t in range(len(trajectory))], room)
    outcome = "success" if trajectory.success else "failure"
    head = [f"Task: {to_json_line(trajectory.task.goal)}", f"Outcome: {outcome}"]
    return quote_record(render_request(trajectory.success, most), turns, head)


def render_request(success: bool, most: int) -> str:
    """What is wanted of any episode."""
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


# Reading an analyzer's answer: leniently as to form, strictly as to content.

_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_STEP = re.compile(r"\s*0*([0-9]{1,9})\s*")
MAX_ANSWER_CHARS = 40_000
"""characters that are read of an answer, its last ones: far more than its tokens could be"""
MAX_SKILL_CHARS = 2000
"""characters; what is longer is no skill"""


class UnusableAnswer(Exception):
    """An answer that says nothing."""


def parse_skills(answer: str, steps: int, most: int) -> Skills:
    """The skills of an episode of so many steps; the first `most` critical steps, in their order."""
    found = _object(answer)
    episode = _text(found.get("episode_skill"), "episode_skill")
    summary = found.get("episode_summary")
    told = found.get("step_skills") or {}
    if not isinstance(told, dict):
        raise UnusableAnswer(f"step_skills is a {type(told).__name__}, not an object")
    by_step: dict[int, str] = {}
    for key, value in told.items():
        number = _STEP.fullmatch(key)
        if number is None or not int(number[1]) < steps:
            raise UnusableAnswer(f"step_skills has {key[:40]!r}, and the episode the steps 0 to {steps - 1}")
        by_step[int(number[1])] = _text(value, f"step_skills[{int(number[1])}]")
    kept = dict(sorted(by_step.items())[:most])
    return Skills(episode, kept, summary.strip() if isinstance(summary, str) and is_unicode(summary) else "")


def _object(answer: str) -> dict:
    """The last object that has a skill, whatever stands around it: a fence, a remark, a thought with drafts in it."""
    said = answer[-MAX_ANSWER_CHARS:]
    if not 0 <= said.find("{") < said.rfind("}"):
        raise UnusableAnswer(f"no JSON object in {answer[:60]!r}")
    found = [_objects(text) for text in (said, _TRAILING_COMMA.sub(r"\1", said))]
    for objects in found:
        if skilled := [one for one in objects if "episode_skill" in one]:
            return skilled[-1]
    if not any(found):
        raise UnusableAnswer(f"not JSON: {said[said.find('{') :][:60]!r}")
    return next(filter(None, found))[0]


def _objects(text: str) -> list[dict]:
    found, place = [], text.find("{")
    while place >= 0:
        end = place + 1
        try:
            one, after = json.JSONDecoder().raw_decode(text, place)
            found.append(one)
            end = after if "episode_skill" in one else end  # else it may be wrapped: look inside
        except (ValueError, RecursionError):
            pass
        place = text.find("{", end)
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
"""times a model is asked about one episode; then the episode has no skill"""
CHARACTERS_PER_TOKEN = 3
"""of a question, at first; one that then does not fit loses more turns"""
MIN_ANSWER_TOKENS = 64
"""tokens in which nobody can answer"""


@dataclass(frozen=True)
class Analysis:
    """What came of looking back on one episode."""

    skills: Skills = field(default_factory=Skills)
    problem: str = ""
    """why there is no skill"""
    asked: int = 0
    """questions put to a model; none where it was known already"""
    written: int = 0
    """tokens of its answers"""
    read: int = 0
    """tokens of the questions"""

    def added_to(self, earlier: Analysis) -> Analysis:
        """This one, at the cost of both."""
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
                f"world {world.name!r} has no rule for what an episode teaches. Let a model say it (--analyzer policy, or "
                "--analyzer model with a [policies.analyzer] table), or give its Environment `hindsight=…`."
            )
        return cls(world.hindsight, most)

    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], list[Analysis]]:
        found = [self._analyse(trajectory) for trajectory in trajectories]
        return lambda: found

    def _analyse(self, trajectory: Trajectory) -> Analysis:
        try:
            skills = self.rule(trajectory)
            return Analysis(replace(skills, steps=dict(sorted(skills.steps.items())[: self.most])))
        except Exception as error:  # somebody's rule: one episode loses its skill, no more
            return Analysis(problem=f"{type(error).__name__}: {error}")


@dataclass
class ModelAnalyzer(Analyzer):
    """Asks a model about each episode, and once more where the answer cannot be used.

    A model that runs elsewhere (an endpoint) works on while the trainer goes on; one that runs here is waited for, since it
    needs the same cores.
    """

    model: Callable[[], Policy] | None
    """None: the policy that is trained"""
    most: int = 5
    temperature: float = 0.4
    max_tokens: int = 4096
    kept: Path | None = None
    """where its answers are written down"""

    def __post_init__(self) -> None:
        self._answers: AnswerCache | None = None
        self._who: object = None

    def check(self, policy: Policy) -> None:
        """Refuse a model that has no room for the question and its answer: it would never be asked."""
        asked = self.model() if self.model else policy
        least, limit = len(asked.encode_prompt(render_request(True, self.most))), asked.context_limit
        if least + self.max_tokens < limit:
            return
        free = limit - least - 1
        shorter = f"Lower --analyzer-tokens to {free // 2} or so, or take" if free // 2 >= MIN_ANSWER_TOKENS else "Take"
        raise TacitError(
            f"the analyzer reads and writes {limit} tokens; its question alone has {least}, and an answer up to "
            f"{self.max_tokens} (--analyzer-tokens). {shorter} a model with a longer context, or --analyzer rule."
        )

    def begin(self, trajectories: Sequence[Trajectory], policy: Policy, info: IterationInfo) -> Callable[[], list[Analysis]]:
        asked = self.model() if self.model else policy
        if self._answers is None:
            self._answers = AnswerCache(self.kept)
        if getattr(asked, "elsewhere", False):
            return _run_in_thread(lambda: self._analyse(trajectories, asked, info))
        found = self._analyse(trajectories, asked, info)
        return lambda: found

    def _analyse(self, trajectories: Sequence[Trajectory], asked: Policy, info: IterationInfo) -> list[Analysis]:
        found = [Analysis(problem="not asked")] * len(trajectories)
        for attempt in range(ATTEMPTS):
            left = [i for i, analysis in enumerate(found) if analysis.problem]
            if left:
                answers = self._ask([trajectories[i] for i in left], asked, info, attempt)
                for i, after in zip(left, answers, strict=True):
                    found[i] = after.added_to(found[i])
        return found

    def _ask(self, trajectories: Sequence[Trajectory], asked: Policy, info: IterationInfo, attempt: int) -> list[Analysis]:
        assert self._answers is not None
        if self.model and self._who is None:  # nobody trains it, so what names it stays
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
        """The question about an episode and its tokens; more of the episode goes until they fit, or two turns are left."""
        characters, shortest = max(1, room) * CHARACTERS_PER_TOKEN, ""
        while True:
            text = render_question(trajectory, self.most, characters)
            prompt = asked.encode_prompt(text)
            if len(prompt) <= room or text == shortest:
                return text, prompt
            shortest = render_question(trajectory, self.most, 0)
            characters = characters * 3 // 4

    def _fetch(self, prompts: Mapping[str, np.ndarray], asked: Policy, info: IterationInfo) -> dict[str, Answer]:
        """Have them answered, each written down as it comes, so that whatever ends the run costs no answer."""
        assert self._answers is not None
        fresh: dict[str, Answer] = {}
        with closing(open_scheduler(asked, Sampling(self.temperature, max_tokens=self.max_tokens), None)) as scheduler:
            request_ids = {scheduler.submit(Request(p, derive(info.seed, "hindsight", key))): key for key, p in prompts.items()}
            while finished := scheduler.wait():
                for request_id, completion in finished:
                    key = request_ids[request_id]
                    failed = completion.finish == "unusable"  # then nobody has read anything
                    read = completion.read or (0 if failed else len(prompts[key]))
                    answer = Answer(completion.text, read, len(completion.tokens))
                    fresh[key] = answer
                    if completion.text.strip():  # a broken connection is no answer, and must be asked again another time
                        self._answers.add(key, answer)
        return fresh


def _run_in_thread(work: Callable[[], list[Analysis]]) -> Callable[[], list[Analysis]]:
    """Do it in a thread that nobody has to wait for who stops the run; a way to what comes of it."""
    found: Future[list[Analysis]] = Future()

    def doing() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # raised where it is waited for
            found.set_exception(error)

    Thread(target=doing, name="hindsight", daemon=True).start()
    return found.result
