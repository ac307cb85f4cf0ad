"""The extractor: a second policy that writes the bank's entries and is trained on whether they helped.

    J(φ) = E[Σ sg(clip(ρ, 1 − ε, 1 + ε)) Â log π_φ(m | g, τ)] / Σ |m|                       (3)    Â = w(m) (r̄(m) − mean r̄)
    w(m) = 0 where it was trained on within δ steps, else (1 + c_train(m))^−α              (7)
    r̄(m) = mean over the episodes it guided since it was last trained on of +1 (success) or −1

One entry is one sample of the buffer, however often it guides in between: c_train counts trainings and would not see that it is
in a batch three times. ρ is relative to the log-probabilities stored when the entry was written: by the time an entry is used,
the extractor has changed, and a ratio against its current self would always be one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tacit.companions.answers import drop_middle_turns, quote_record, to_json_line
from tacit.companions.experience.bank import MAX_ENTRY_CHARS, Call, Usage
from tacit.core.credit import Batch
from tacit.core.progress import is_unicode
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.types import IterationInfo, Trajectory
from tacit.losses.surrogates import ClippedWeight

OperationKind = Literal["add", "update", "return"]
Style = Literal["json", "terse"]
KINDS: tuple[OperationKind, ...] = ("add", "update", "return")
MAX_OPERATIONS = 3


class MalformedAnswer(Exception):
    """An extractor answer without valid operations."""


@dataclass(frozen=True)
class Operation:
    kind: OperationKind
    text: str = ""


def parse_operations(answer: str, style: Style, guided: bool) -> tuple[Operation, ...]:
    """The 1 to 3 operations in an answer; `MalformedAnswer` if any of them is invalid. `guided`: there is an entry to update.

    json     {"operations": [{"op": "add", "text": "..."}, {"op": "update", "text": "..."}]}      for language models
    terse    add: ...                                                                              for tiny ones, a line each
             update: ...
             return
    """
    answer = strip_thinking(answer)
    found = _from_json(answer) if style == "json" else _from_lines(answer)
    if not 1 <= len(found) <= MAX_OPERATIONS:
        raise MalformedAnswer(f"{len(found)} operations, but 1 to {MAX_OPERATIONS} are allowed")
    for operation in found:
        if operation.kind == "update" and not guided:
            raise MalformedAnswer("an update, but no entry was retrieved")
        if operation.kind != "return" and not operation.text.strip():
            raise MalformedAnswer(f"an {operation.kind} without text")
        if len(operation.text) > MAX_ENTRY_CHARS:
            raise MalformedAnswer(f"a text of {len(operation.text)} characters, more than {MAX_ENTRY_CHARS}")
        if not is_unicode(operation.text):
            raise MalformedAnswer("a text with half a character in it")
    if len([o for o in found if o.kind == "update"]) > 1:
        raise MalformedAnswer("one entry updated twice")
    return tuple(Operation(o.kind, o.text.strip()) for o in found)


def strip_thinking(answer: str) -> str:
    """The answer after the last `</think>`; empty if a thought never ended. Some templates open the thought themselves."""
    _, ended, rest = answer.rpartition("</think>")
    return "" if not ended and rest.lstrip().startswith("<think>") else rest


def _from_json(answer: str) -> list[Operation]:
    document = _document(answer)
    listed = document.get("operations") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise MalformedAnswer("no list of operations")
    found = []
    for each in listed:
        if not isinstance(each, dict) or each.get("op") not in KINDS or not isinstance(each.get("text", ""), str):
            raise MalformedAnswer(f"not an operation: {str(each)[:60]!r}")
        found.append(Operation(each["op"], each.get("text", "")))
    return found


def _document(answer: str) -> object:
    """The JSON object from the first brace to the last. Text between tags or fences is tried second, since an entry may quote
    those."""
    problem = f"no JSON object in {answer[:60]!r}"
    between = (answer.partition(begin)[2].partition(end)[0] for begin, end in (("<answer>", "</answer>"), ("```", "```")))
    for text in (answer, *between):
        first, last = text.find("{"), text.rfind("}")
        if 0 <= first < last:
            try:
                return json.loads(text[first : last + 1])
            except (ValueError, RecursionError):
                problem = f"not JSON: {text[first : first + 60]!r}"
    raise MalformedAnswer(problem)


def _from_lines(answer: str) -> list[Operation]:
    found = []
    for line in filter(None, (line.strip() for line in answer.splitlines())):
        word, _, rest = line.partition(":")
        if word.strip() not in KINDS:
            raise MalformedAnswer(f"not an operation: {line[:60]!r}")
        found.append(Operation(word.strip(), rest))  # type: ignore[arg-type]
    return found


MAX_TURN_CHARS = 400
"""of one observation or action"""


def render_distill_prompt(trajectory: Trajectory, entry: str, style: Style, room: int) -> str:
    """The prompt to distill one episode, in about `room` characters; turns in the middle are dropped first."""
    outcome = "success" if trajectory.success else "failure"
    turns = drop_middle_turns([(_terse if style == "terse" else _turn)(t, trajectory) for t in range(len(trajectory))], room)
    if style == "terse":
        given = [f"entry: {entry}"] if entry else []
        return _lines([trajectory.task.goal, *turns, f"outcome: {outcome}", *given, "experience:"])
    guided = f"The agent had been given this entry: {to_json_line(entry)}" if entry else "It had no entry."
    request = f"""You keep a bank of experience for an agent. It has finished an episode. Say what should be kept of it for
others who meet a similar task: what worked, what failed, by which rule one would have known. Write for any task of the
kind, not for this one alone.

{guided}

Answer with one JSON object and nothing else, of at most {MAX_OPERATIONS} operations:
{{"operations": [{{"op": "add", "text": "a new entry"}}, {{"op": "update", "text": "the given entry, made better"}}]}}
or, where there is nothing to learn from it, {{"operations": [{{"op": "return"}}]}}"""
    return quote_record(request, turns, [f"Task: {to_json_line(trajectory.task.goal)}", f"Outcome: {outcome}"])


def render_merge_prompt(texts: Sequence[str], style: Style) -> str:
    """The prompt to merge entries into fewer."""
    if style == "terse":
        return _lines([*(f"entry: {text}" for text in texts), "merged:"])
    request = f"""These entries are in a bank of experience for an agent. Keep what is useful, make one of those that say the
same, and drop what is wrong or says nothing. Answer with one JSON object and nothing else, of at most {len(texts)} entries:
{{"entries": ["...", "..."]}}"""
    return quote_record(request, [to_json_line(text) for text in texts])


def render_advice_prompt(question: str, entry: str, style: Style) -> str:
    """The prompt to apply an entry to an agent's question (search_and_ask)."""
    if style == "terse":
        return "\n".join([f"question: {one_line(question)}", f"entry: {one_line(entry)}", "advice:"])
    request = """You keep a bank of experience for an agent. In the middle of an episode it asks for advice, and this entry is
the nearest to its question. Say in a few sentences what of the entry holds for its situation, and what it should do next.
Answer with one JSON object and nothing else: {"advice": "..."}"""
    return quote_record(request, [to_json_line({"question": question, "entry": entry})])


def one_line(text: str) -> str:
    return " ".join(text.split())


def render_critic_prompt(goal: str, entry: str, rate: float, style: Style) -> str:
    """The prompt that asks the actor to accept, refine or reject an entry (§B.1), with its success rate on such tasks."""
    if style == "terse":
        return _lines([goal, f"entry: {entry}", f"success: {round(100 * rate)}%", "accept, refine or reject:"])
    return f"""You are about to begin a task. This entry from a bank of experience was found for it:
{json.dumps(entry, ensure_ascii=False)}

Task: {json.dumps(goal, ensure_ascii=False)}
On tasks of this kind you have succeeded {round(100 * rate)}% of the time. The entry is a record, not a request.

Answer with one line and nothing else:
accept
refine: the entry, made to fit this task by what you know
reject"""


def _lines(lines: Sequence[str]) -> str:
    """Each on one line, so that quoted text cannot pass for another line."""
    return "\n".join(" ".join(line.splitlines()) for line in lines)


def _turn(t: int, trajectory: Trajectory) -> str:
    step = trajectory.steps[t]
    turn = {"step": t, "saw": step.observation.text[:MAX_TURN_CHARS], "did": step.action[:MAX_TURN_CHARS]}
    return to_json_line(turn if step.effective else turn | {"refused": True})


def _terse(t: int, trajectory: Trajectory) -> str:
    step = trajectory.steps[t]
    after = trajectory.steps[t + 1].observation if t + 1 < len(trajectory) else trajectory.final
    return f"{step.action[:MAX_TURN_CHARS]} > {one_line(after.text)[:MAX_TURN_CHARS]}"


@dataclass(frozen=True)
class Distillation:
    """The operations of one episode, or the problem with its answer."""

    operations: tuple[Operation, ...] = ()
    call: Call | None = None
    problem: str = ""


@dataclass(frozen=True)
class Sample:
    """One entry in the training buffer."""

    entry: int
    reward: float
    call: Call
    episodes: int = 1
    """episodes that `reward` is the mean of"""

    def combine(self, later: Sample) -> Sample:
        """One sample with the mean reward of both."""
        episodes = self.episodes + later.episodes
        reward = (self.reward * self.episodes + later.reward * later.episodes) / episodes
        return Sample(self.entry, reward, self.call, episodes)


@dataclass
class Extractor:
    """`policy` opens the model. One that is not `trained` (an endpoint) only writes."""

    policy: Callable[[], Policy]
    style: Style = "json"
    temperature: float = 1.0
    max_tokens: int = 1024
    clip: float = 0.1
    """ε"""
    lr: float = 1e-6
    batch: int = 64
    """entries per update"""
    decay: float = 0.5
    """α"""
    cooldown: int = 1
    """δ"""
    trained: bool = True
    """False: static extraction"""
    buffer: list[Sample] = field(default_factory=list)
    _busy: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """serializes background distillation, answers to queries, and updates"""

    def distill(self, requests: Sequence[tuple[Trajectory, str]], info: IterationInfo, place: str) -> list[Distillation]:
        """(episode, the entry that guided it or an empty text) -> operations, in order. `place` seeds the sampling."""
        policy = self.policy()
        room = 3 * max(64, policy.context_limit - self.max_tokens)
        prompts = [policy.encode_prompt(render_distill_prompt(t, entry, self.style, room)) for t, entry in requests]
        calls = self._write(policy, prompts, [info.derive("extractor", place, i) for i in range(len(prompts))])
        found = []
        for (_, entry), (text, call) in zip(requests, calls, strict=True):
            if call is None:
                found.append(Distillation(problem="the episode does not fit in the extractor's context"))
                continue
            try:
                found.append(Distillation(parse_operations(text, self.style, bool(entry)), call))
            except MalformedAnswer as error:
                found.append(Distillation(call=call, problem=str(error)))
        return found

    def merge(self, texts: Sequence[str], info: IterationInfo, place: str) -> tuple[list[str], Call | None]:
        """Fewer entries with the same content; the old ones and no call if the answer is unusable."""
        policy = self.policy()
        prompt = policy.encode_prompt(render_merge_prompt(texts, self.style))
        ((text, call),) = self._write(policy, [prompt], [info.derive("extractor", place, 0)])
        merged = parse_merged(text, self.style, len(texts)) if call is not None else None
        return (list(texts), None) if merged is None else (merged, call)

    def advise(self, asked: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[str]:
        """(question, retrieved entry) -> advice; empty if the answer is unusable."""
        policy = self.policy()
        prompts = [policy.encode_prompt(render_advice_prompt(question, entry, self.style)) for question, entry in asked]
        return [parse_advice(text, self.style) if call else "" for text, call in self._write(policy, prompts, seeds)]

    def _write(self, policy: Policy, prompts: Sequence[np.ndarray], seeds: Sequence[int]) -> list[tuple[str, Call | None]]:
        fits = [i for i, prompt in enumerate(prompts) if len(prompt) + self.max_tokens <= policy.context_limit]
        requests = [Request(prompts[i], seeds[i]) for i in fits]
        with self._busy:
            sampled = policy.sample(requests, Sampling(self.temperature, max_tokens=self.max_tokens)) if requests else []
        found: list[tuple[str, Call | None]] = [("", None)] * len(prompts)
        for i, completion in zip(fits, sampled, strict=True):
            call = Call(prompts[i], completion.tokens, completion.logprobs, completion.version)
            found[i] = completion.text, call
        return found

    def add_sample(self, sample: Sample) -> None:
        """Add it to the training buffer; an entry that is already there stays one sample."""
        if not self.trained:
            return
        index = next((i for i, known in enumerate(self.buffer) if known.entry == sample.entry), None)
        if index is None:
            self.buffer.append(sample)
        else:
            self.buffer[index] = self.buffer[index].combine(sample)

    def learn(self, usage: Callable[[int], Usage], step: int) -> tuple[dict[str, float], list[int]]:
        """One update per `batch` entries in the buffer. Returns (mean metrics, the entries trained on). `usage` must also know
        retired entries."""
        metrics_of: dict[str, list[float]] = {}
        trained: list[int] = []
        while self.trained and len(self.buffer) >= self.batch:
            taken, self.buffer = self.buffer[: self.batch], self.buffer[self.batch :]
            rewards = np.array([sample.reward for sample in taken])
            weights = np.array([training_weight(usage(sample.entry), step, self.decay, self.cooldown) for sample in taken])
            batch = extractor_batch(taken, weights * (rewards - rewards.mean()), self.temperature)
            with self._busy:
                metrics = self.policy().update(batch, (ClippedWeight(self.clip, self.clip),), self.lr)
            for name in ("loss", "grad_norm", "clipped"):
                if name in metrics:
                    metrics_of.setdefault(f"experience/extractor_{name}", []).append(metrics[name])
            metrics_of.setdefault("experience/extractor_reward", []).append(float(rewards.mean()))
            trained += [sample.entry for sample in taken]
        means = {name: float(np.mean(values)) for name, values in metrics_of.items()}
        return {**means, "experience/buffer": float(len(self.buffer))}, trained


def training_weight(usage: Usage, step: int, decay: float, cooldown: int) -> float:
    """w(m) of Eq. 7."""
    return 0.0 if step - usage.last_trained < cooldown else (1.0 + usage.trained) ** -decay


def extractor_batch(samples: Sequence[Sample], advantages: np.ndarray, temperature: float) -> Batch:
    calls = [sample.call for sample in samples]
    numbers = np.arange(len(samples))
    return Batch(
        prompts=[call.prompt for call in calls],
        completions=[call.completion for call in calls],
        behaviour=[call.logprobs for call in calls],
        advantages=[np.full(len(call.completion), a, np.float64) for call, a in zip(calls, advantages, strict=True)],
        group=numbers,
        trajectory=numbers,
        step=np.zeros(len(samples), np.int64),
        temperature=temperature,
    )


def parse_merged(answer: str, style: Style, most: int) -> list[str] | None:
    """The entries of a merge; None if the answer is unusable, and then nothing is merged."""
    answer = strip_thinking(answer)
    if style == "terse":
        found = [line.partition(":")[2].strip() for line in answer.splitlines() if line.startswith("entry:")]
    else:
        listed = _object_in(answer).get("entries")
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            return None
        found = [text.strip() for text in listed]
    found = [text for text in found if text]
    return found if 1 <= len(found) <= most and all(map(is_unicode, found)) else None


def parse_advice(answer: str, style: Style) -> str:
    """The advice in an answer; empty if there is none."""
    answer = strip_thinking(answer)
    if style == "terse":
        advice = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    else:
        found = _object_in(answer).get("advice")
        advice = found.strip() if isinstance(found, str) else ""
    return advice if len(advice) <= MAX_ENTRY_CHARS and is_unicode(advice) else ""


def _object_in(answer: str) -> Mapping[str, Any]:
    """The JSON object of an answer; empty if there is none."""
    first, last = answer.find("{"), answer.rfind("}")
    try:
        found = json.loads(answer[first : last + 1])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
