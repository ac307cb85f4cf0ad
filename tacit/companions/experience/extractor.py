"""The extractor: a second policy that writes the bank's entries and is rewarded if they help.

    J(φ) = E[Σ sg(clip(ρ, 1 − ε, 1 + ε)) Â log π_φ(m | g, τ)] / Σ |m|                       (3)    Â = w(m) (r̄(m) − mean r̄)
    w(m) = 0 where it was trained on within δ steps, else (1 + c_train(m))^−α              (7)
    r̄(m) = mean over the episodes it guided since it was last trained on of +1 (success) or −1

An entry is one sample of the buffer, however often it guides in between, so the cooldown applies from δ = 2 on. A sample of
weight 0 is used up, but its entry does not count as trained. ρ is relative to the log-probabilities stored when the entry was
written. With `refinements`, an answer to an agent's question is a sample too, trained on once (w = 1).
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tacit.companions.answers import drop_middle_turns, quote_record, to_json_line
from tacit.companions.experience.bank import MAX_ENTRY_CHARS, Call, Usage
from tacit.core.bounds import AtLeastOne, Count, NotNegative, Positive, PositiveShare
from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode
from tacit.core.protocols import PinnedSampler, Policy, Request, Sampling
from tacit.core.types import Completion, IterationInfo, Trajectory
from tacit.losses.surrogates import ClippedWeight
from tacit.rollout.encoding import open_scheduler

OperationKind = Literal["add", "update", "return"]
Style = Literal["json", "terse"]
KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
MAX_OPERATIONS = 3


@dataclass(frozen=True)
class ExtractorSettings:
    """How the extractor writes and learns: `[method.extractor]`, `--extractor.tokens`."""

    style: Style = "json"
    """format of its operations: json, or terse lines for tiny models"""
    tokens: AtLeastOne = 8192
    """longest answer, in tokens; at most half of its context"""
    temperature: Positive = 1.0
    """sampling temperature"""
    top_p: PositiveShare = 0.99
    """nucleus kept when sampling"""
    top_k: Count = 50
    """likeliest tokens kept when sampling; 0 keeps all"""
    batch: AtLeastOne = 64
    """samples per update"""
    lr: NotNegative = 1e-6
    """learning rate"""
    clip: Positive = 0.1
    """ε: clip range of the importance weights"""
    decay: NotNegative = 0.5
    """α: decay of an entry's weight with each update on it"""
    cooldown: Count = 2
    """δ: iterations before an entry is trained on again; 0 and 1 mean no cooldown"""
    refinements: bool = True
    """also train on the refined answers to questions"""


class MalformedAnswer(Exception):
    """An extractor answer without valid operations."""


class Operation(NamedTuple):
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
    if style == "json":
        listed = find_object(answer).get("operations")
        if not isinstance(listed, list):
            raise MalformedAnswer("no list of operations")
    else:
        parts = [(line.strip(), *line.strip().partition(":")) for line in answer.splitlines() if line.strip()]
        listed = [{"op": word.strip(), "text": rest} if word.strip() in KINDS else line for line, word, _, rest in parts]
    operations: list[Operation] = []
    for item in listed:
        if not isinstance(item, dict) or item.get("op") not in KINDS or not isinstance(item.get("text", ""), str):
            raise MalformedAnswer(f"not an operation: {str(item)[:60]!r}")
        operations.append(Operation(item["op"], item.get("text", "")))
    if not 1 <= len(operations) <= MAX_OPERATIONS:
        raise MalformedAnswer(f"{len(operations)} operations, but 1 to {MAX_OPERATIONS} are allowed")
    for kind, text in operations:
        if kind == "update" and not guided:
            raise MalformedAnswer("an update, but no entry was retrieved")
        if kind != "return" and not text.strip():
            raise MalformedAnswer(f"an {kind} without text")
        if len(text) > MAX_ENTRY_CHARS:
            raise MalformedAnswer(f"a text of {len(text)} characters, more than {MAX_ENTRY_CHARS}")
        if not is_unicode(text):
            raise MalformedAnswer("a text with half a character in it")
    if sum(kind == "update" for kind, _ in operations) > 1:
        raise MalformedAnswer("one entry updated twice")
    return tuple(Operation(kind, text.strip()) for kind, text in operations)


def strip_thinking(answer: str) -> str:
    """The answer after the last `</think>`; "" if a thought is not closed. Some chat templates open the thought themselves."""
    _, ended, rest = answer.rpartition("</think>")
    return "" if not ended and rest.lstrip().startswith("<think>") else rest


def find_object(answer: str) -> Mapping[str, Any]:
    """The JSON object from the first brace to the last. If that fails, try the text inside tags or fences."""
    problem = f"no JSON object in {answer[:60]!r}"
    between = (answer.partition(begin)[2].partition(end)[0] for begin, end in (("<answer>", "</answer>"), ("```", "```")))
    for text in (answer, *between):
        first, last = text.find("{"), text.rfind("}")
        if 0 <= first < last:
            try:
                return json.loads(text[first : last + 1])  # starts with a brace, so it is an object
            except (ValueError, RecursionError):
                problem = f"not JSON: {text[first : first + 60]!r}"
    raise MalformedAnswer(problem)


def parse_merged(answer: str, style: Style, max_entries: int) -> list[str] | None:
    """The entries of a merge; None if the answer is unusable."""
    answer = strip_thinking(answer)
    lines = [line.partition(":")[2] for line in answer.splitlines() if line.startswith("entry:")]
    try:
        listed = lines if style == "terse" else find_object(answer).get("entries")
    except MalformedAnswer:
        return None
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        return None
    texts = [text.strip() for text in listed if text.strip()]
    return texts if 1 <= len(texts) <= max_entries and all(map(is_unicode, texts)) else None


def parse_advice(answer: str, style: Style) -> str:
    answer = strip_thinking(answer)
    try:
        advice = next(iter(answer.strip().splitlines()), "") if style == "terse" else find_object(answer).get("advice")
    except MalformedAnswer:
        return ""
    advice = advice.strip() if isinstance(advice, str) else ""
    return advice if len(advice) <= MAX_ENTRY_CHARS and is_unicode(advice) else ""


def render_distill_prompt(trajectory: Trajectory, entry: str, style: Style, room: int) -> str:
    """The prompt to distill one episode, in about `room` characters; turns in the middle are dropped first."""
    outcome = "success" if trajectory.success else "failure"
    turns: list[str] = []
    for t, (step, after) in enumerate(zip(trajectory.steps, trajectory.observations[1:], strict=True)):
        if style == "terse":
            reply = step.answer or after.text
            turns.append(f"{step.action} > {' '.join(reply.split())}")
            continue
        # The thought, or the whole completion if it is not an action.
        thought = step.completion.text.partition("<action>")[0] if "<action>" in step.completion.text else ""
        thought = ((step.thought or step.completion.text) if step.thought or not step.valid else thought).strip()
        turn: dict[str, Any] = {"step": t, "saw": step.observation.text}
        turn |= {"thought": thought} if thought else {}
        turn |= {"did": step.action} | ({"answer": step.answer} if step.answer else {})
        turns.append(to_json_line(turn if step.effective else turn | {"refused": True}))
    if style == "json":
        turns.append(to_json_line({"saw": trajectory.final.text}))
    turns = drop_middle_turns(turns, room)
    if style == "terse":
        entry_lines = [f"entry: {entry}"] if entry else []
        return _lines([trajectory.task.goal, *turns, f"outcome: {outcome}", *entry_lines, "experience:"])
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
    if style == "terse":
        return _lines([*(f"entry: {text}" for text in texts), "merged:"])
    request = f"""These entries are in a bank of experience for an agent. Keep what is useful, make one of those that say the
same, and drop what is wrong or says nothing. Answer with one JSON object and nothing else, of at most {len(texts)} entries:
{{"entries": ["...", "..."]}}"""
    return quote_record(request, [to_json_line(text) for text in texts])


def render_advice_prompt(question: str, entry: str, style: Style) -> str:
    if style == "terse":
        return f"question: {' '.join(question.split())}\nentry: {' '.join(entry.split())}\nadvice:"
    request = """You keep a bank of experience for an agent. In the middle of an episode it asks for advice, and this entry is
the nearest to its question. Say in a few sentences what of the entry holds for its situation, and what it should do next.
Answer with one JSON object and nothing else: {"advice": "..."}"""
    return quote_record(request, [to_json_line({"question": question, "entry": entry})])


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
    """Put each text on one line, so that quoted text cannot imitate another line."""
    return "\n".join(" ".join(line.splitlines()) for line in lines)


Distilled = tuple[tuple[Operation, ...], Call | None, str]
"""the operations of one episode and the call that gave them, or the problem with its answer"""


@dataclass(frozen=True)
class Sample:
    """One entry, or one refined answer, in the training buffer."""

    entry: int
    reward: float
    call: Call
    episodes: int = 1  # episodes that `reward` is the mean of
    refinement: bool = False  # `call` refined the entry for a question


def find_cut(completion: Completion, prompt_end: str) -> str:
    """Why an answer is unfinished; "" if it is finished. A chat template may open the thought at the end of the prompt."""
    if completion.finish != "stop":
        return f"an answer that was cut off after {len(completion.tokens)} tokens"
    opened = prompt_end.rstrip().endswith("<think>") or completion.text.lstrip().startswith("<think>")
    return "a thought that never ended" if opened and "</think>" not in completion.text else ""


@dataclass
class Extractor:
    """`policy` opens the model. One that is not `trained` (an endpoint) only writes."""

    policy: Callable[[], Policy]
    settings: ExtractorSettings = field(default_factory=ExtractorSettings)
    trained: bool = True  # False: static extraction
    background: bool = False  # sample in a thread, for several threads at once
    buffer: list[Sample] = field(default_factory=list)
    updates: int = 0  # updates so far, in a resumed run too: the version of its weights
    _thread: SamplingThread | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def distill(self, requests: Sequence[tuple[Trajectory, str]], info: IterationInfo, key: str) -> list[Distilled]:
        """(episode, the entry that guided it or an empty text) -> operations, in order. `key` seeds the sampling."""
        policy, prompts = self.policy(), []
        limit = policy.context_limit - self._sampling(policy).max_tokens
        for trajectory, entry in requests:
            room, prompt = 3 * max(64, limit), np.zeros(0, np.int64)
            for _ in range(4):  # drop turns from the middle until it fits; a prompt that never fits is refused later
                text = render_distill_prompt(trajectory, entry, self.settings.style, room)
                prompt = policy.encode_prompt(text)
                if len(prompt) <= limit:
                    break
                room = int(0.9 * room * limit / len(prompt))
            prompts.append(prompt)
        answers = self._ask(policy, prompts, [info.derive("extractor", key, i) for i in range(len(prompts))])
        distilled: list[Distilled] = []
        for (_, entry), (text, call, problem) in zip(requests, answers, strict=True):
            try:
                operations = () if problem else parse_operations(text, self.settings.style, bool(entry))
            except MalformedAnswer as error:
                operations, problem = (), str(error)
            distilled.append((operations, call, problem))
        return distilled

    def merge(self, texts: Sequence[str], info: IterationInfo, key: str) -> tuple[list[str], Call | None]:
        """Fewer entries with the same content; the old ones and no call if the answer is unusable."""
        policy = self.policy()
        prompt = policy.encode_prompt(render_merge_prompt(texts, self.settings.style))
        ((text, call, problem),) = self._ask(policy, [prompt], [info.derive("extractor", key, 0)])
        merged = None if problem else parse_merged(text, self.settings.style, len(texts))
        return (list(texts), None) if merged is None else (merged, call)

    def advise(self, questions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[str, Call | None]]:
        """(question, retrieved entry) -> (advice, the call that wrote it); ("", None) if the answer is unusable."""
        policy, style = self.policy(), self.settings.style
        prompts = [policy.encode_prompt(render_advice_prompt(question, entry, style)) for question, entry in questions]
        answers = self._ask(policy, prompts, seeds)
        return [("" if problem else parse_advice(text, style), call) for text, call, problem in answers]

    def _open_thread(self) -> SamplingThread | None:
        with self._lock:
            if self.background and self._thread is None:
                policy = self.policy()
                self._thread = SamplingThread(policy, self._sampling(policy), lambda: self.updates)
        return self._thread

    def _sampling(self, policy: Policy) -> Sampling:
        settings = self.settings
        return Sampling(settings.temperature, settings.top_p, settings.top_k, min(settings.tokens, policy.context_limit // 2))

    def _ask(self, policy: Policy, prompts: Sequence[np.ndarray], seeds: Sequence[int]) -> list[tuple[str, Call | None, str]]:
        """(answer, call, why it cannot be used) of each prompt."""
        sampling = self._sampling(policy)
        fits = [i for i, prompt in enumerate(prompts) if len(prompt) + sampling.max_tokens <= policy.context_limit]
        requests = [Request(prompts[i], seeds[i]) for i in fits]
        sampled, version = list[Completion](), self.updates
        if requests and (thread := self._open_thread()):
            sampled, version = thread.sample(requests)
        elif requests:
            sampled = policy.sample(requests, sampling)
        unfit: tuple[str, Call | None, str] = ("", None, "a text that does not fit in the extractor's context")
        answers = [unfit] * len(prompts)
        for i, completion in zip(fits, sampled, strict=True):
            call = Call(prompts[i], completion.tokens, completion.logprobs, version)
            answers[i] = completion.text, call, find_cut(completion, policy.decode(prompts[i][-8:]))
        return answers

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()

    def add_sample(self, sample: Sample) -> None:
        """Add a sample to the training buffer. Samples of the same entry are averaged into one."""
        if not self.trained or (sample.refinement and not self.settings.refinements):
            return
        with self._lock:
            for i, old in enumerate(self.buffer):
                if old.entry == sample.entry and not (old.refinement or sample.refinement):
                    episodes = old.episodes + sample.episodes
                    reward = (old.reward * old.episodes + sample.reward * sample.episodes) / episodes
                    self.buffer[i] = Sample(old.entry, reward, old.call, episodes)
                    return
            self.buffer.append(sample)

    def learn(self, usage: Callable[[int], Usage], step: int) -> tuple[dict[str, float], list[int]]:
        """One update per `batch` samples. Returns (mean metrics, entries trained on). `usage` must know retired entries too."""
        settings, values, trained = self.settings, dict[str, list[float]](), list[int]()
        while self.trained and len(self.buffer) >= settings.batch:
            with self._lock:
                samples, self.buffer = self.buffer[: settings.batch], self.buffer[settings.batch :]
            rewards = np.array([sample.reward for sample in samples])
            weights = np.ones(len(samples))
            for i, sample in enumerate(samples):
                if not sample.refinement:
                    weights[i] = training_weight(usage(sample.entry), step, settings.decay, settings.cooldown)
            if weights.any():
                batch = extractor_batch(samples, weights * (rewards - rewards.mean()), settings.temperature)
                thread = self._open_thread()
                metrics = thread.run_update(partial(self._update, batch)) if thread else self._update(batch)
                for name in ("loss", "grad_norm", "clipped"):
                    if name in metrics:
                        values.setdefault(f"experience/extractor_{name}", []).append(metrics[name])
            values.setdefault("experience/extractor_reward", []).append(float(rewards.mean()))
            trained += [s.entry for s, weight in zip(samples, weights, strict=True) if weight > 0 and not s.refinement]
        means = {name: float(np.mean(values)) for name, values in values.items()}
        return {**means, "experience/buffer": float(len(self.buffer))}, trained

    def _update(self, batch: Batch) -> Mapping[str, float]:
        clip = self.settings.clip
        metrics = self.policy().update(batch, (ClippedWeight(clip, clip),), self.settings.lr)
        self.updates += 1
        return metrics


def training_weight(usage: Usage, step: int, decay: float, cooldown: int) -> float:
    """w(m) of Eq. 7."""
    return 0.0 if step - usage.last_trained < cooldown else (1.0 + usage.trained) ** -decay


def extractor_batch(samples: Sequence[Sample], advantages: np.ndarray, temperature: float) -> Batch:
    calls = [sample.call for sample in samples]
    numbers = np.arange(len(samples))
    return Batch(
        prompts=[call.prompt for call in calls],
        completions=[call.completion for call in calls],
        behavior=[call.logprobs for call in calls],
        advantages=[np.full(len(call.completion), a, np.float64) for call, a in zip(calls, advantages, strict=True)],
        group=numbers,
        trajectory=numbers,
        step=np.zeros(len(samples), np.int64),
        temperature=temperature,
    )


@dataclass(eq=False)
class SamplingJob:
    requests: Sequence[Request]
    future: Future[tuple[list[Completion], int]] = field(default_factory=Future)
    """(completions, number of updates before they were sampled)"""
    done: dict[int, Completion] = field(default_factory=dict)


class SamplingThread:
    """Samples for several threads in one batch. Requests join it while it is decoded, and callers hold no lock.

    An engine that can (`PinnedSampler`) samples from a copy of the weights while an update changes them. The copy is renewed
    after the update, once the requests under way have ended. With any other engine, sampling and updates take turns.
    """

    def __init__(self, policy: Policy, sampling: Sampling, count_updates: Callable[[], int]) -> None:
        self._policy, self._sampling, self._count_updates = policy, sampling, count_updates
        self._pinned: PinnedSampler | None = policy if isinstance(policy, PinnedSampler) else None
        """the policy, if it can sample during an update"""
        self._inbox: queue.Queue[SamplingJob | None] = queue.Queue()
        self._submit_lock, self._weights_lock = threading.Lock(), threading.Lock()
        """lock on the weights: held while an update changes them and while they are read"""
        self._may_sample = threading.Event()
        self._may_sample.set()
        self._closed = False
        self._copy, self._version = ExitStack(), -1
        self._thread = threading.Thread(target=self._run, name="extractor", daemon=True)
        self._thread.start()

    def sample(self, requests: Sequence[Request]) -> tuple[list[Completion], int]:
        job = SamplingJob(requests)
        with self._submit_lock:  # the end marker must come after the last job
            if self._closed:
                raise TacitError("the extractor has stopped.")
            self._inbox.put(job)
        return job.future.result()

    def run_update(self, update: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        if self._pinned is None:
            self._may_sample.clear()
        with self._weights_lock:
            try:
                return update()
            finally:
                self._may_sample.set()

    def close(self, timeout_s: float = 10.0) -> None:
        """Cancel queued jobs, wait a limited time for running ones, and stop."""
        with self._submit_lock:
            self._closed = True
        while (job := self._pop_job()) is not None:
            job.future.cancel()
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._inbox.get()) is not None:
            self._may_sample.wait()
            try:
                if self._pinned is not None and self._renew_copy(self._pinned):
                    self._sample_until_idle(job)
                else:
                    with self._weights_lock:
                        self._version = self._count_updates()
                        self._sample_until_idle(job)
            except BaseException as error:  # raised in the callers' threads
                if not job.future.done():
                    job.future.set_exception(error)
        self._copy.close()

    def _renew_copy(self, policy: PinnedSampler) -> bool:
        """Sample from the newest weights, unless they are being updated. False if the policy turns out to refuse pinning."""
        is_first = self._version < 0
        if self._version != self._count_updates() and self._weights_lock.acquire(blocking=is_first):
            try:
                self._copy.close()
                self._copy.enter_context(policy.pin_weights())
                self._version = self._count_updates()
            except TacitError:
                self._pinned = None
            finally:
                self._weights_lock.release()
        return self._pinned is not None

    def _sample_until_idle(self, first: SamplingJob) -> None:
        job: SamplingJob | None = first
        in_flight: dict[int, tuple[SamplingJob, int]] = {}
        with closing(open_scheduler(self._policy, self._sampling, None)) as scheduler:
            try:
                while job is not None or in_flight:
                    while job is not None:
                        in_flight |= {scheduler.submit(request): (job, i) for i, request in enumerate(job.requests)}
                        job = self._next_job()
                    for request_id, completion in scheduler.wait():
                        owner, i = in_flight.pop(request_id)
                        owner.done[i] = completion
                        if len(owner.done) == len(owner.requests):
                            owner.future.set_result(([owner.done[k] for k in range(len(owner.requests))], self._version))
                    job = self._next_job()
            except BaseException as error:  # raised in the callers' threads
                for owner in {owner for owner, _ in in_flight.values()}:
                    owner.future.set_exception(error)
                raise

    def _next_job(self) -> SamplingJob | None:
        """The next job that can join the batch; None while an update waits to change the weights."""
        renewing = self._pinned is not None and self._version != self._count_updates()
        return None if renewing or self._closed or not self._may_sample.is_set() else self._pop_job()

    def _pop_job(self) -> SamplingJob | None:
        try:
            job = self._inbox.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            self._inbox.put(None)  # the end marker, for `_run`
        return job
