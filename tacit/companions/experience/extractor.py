"""The extractor: a second policy that writes the bank's entries, and learns from whether they helped.

    J(φ) = E[Σ sg(clip(ρ, 1 − ε, 1 + ε)) Â log π_φ(m | g, τ)] / Σ |m|                       (3)    Â = w(m) (r̄(m) − mean r̄)
    w(m) = 0 where it was trained on within δ steps, else (1 + c_train(m))^−α              (7)
    r̄(m) = mean over the episodes it guided since it was last trained on of +1 (success) or −1

One entry is one sample of the buffer, however often it guides before its turn comes: c_train counts trainings, and would not
see that it stands in a batch three times.

ρ is against the log-probabilities stored when the entry was written: entries are used long after, by then the extractor has
moved on, and a ratio taken against itself would always be one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.companions.experience.asking import advising, distilling, merging
from tacit.companions.experience.entries import LONGEST, Call, Usage
from tacit.companions.experience.operations import (
    Malformed,
    Operation,
    Style,
    after_thought,
    read_operations,
)
from tacit.core.batch import Batch
from tacit.core.moment import Moment
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.text import is_unicode
from tacit.core.types import Trajectory
from tacit.losses.cispo import ClippedWeight


@dataclass(frozen=True)
class Distilled:
    """What came of one request."""

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
    """that `reward` is the mean of"""

    def joined(self, later: Sample) -> Sample:
        """What it earned by then and what it has earned since."""
        episodes = self.episodes + later.episodes
        reward = (self.reward * self.episodes + later.reward * later.episodes) / episodes
        return Sample(self.entry, reward, self.call, episodes)


@dataclass
class Extractor:
    """`policy` is a way to the model; one that is not `trained` (an endpoint) only writes."""

    policy: Callable[[], Policy]
    style: Style = "json"
    temperature: float = 1.0
    max_tokens: int = 1024
    clip: float = 0.1
    """ε"""
    lr: float = 1e-6
    batch: int = 64
    """entries in the buffer before it is trained"""
    decay: float = 0.5
    """α"""
    cooldown: int = 1
    """δ"""
    trained: bool = True
    """False: static extraction"""
    buffer: list[Sample] = field(default_factory=list)
    _busy: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """one at a time: distilling in the background, answering questions, learning"""

    def distil(self, requests: Sequence[tuple[Trajectory, str]], moment: Moment, place: str) -> list[Distilled]:
        """(episode, the entry that guided it, or nothing) -> operations, in order."""
        policy = self.policy()
        room = 3 * max(64, policy.context_limit - self.max_tokens)
        prompts = [policy.encode_prompt(distilling(t, entry, self.style, room)) for t, entry in requests]
        calls = self._write(policy, prompts, [moment.derive("extractor", place, i) for i in range(len(prompts))])
        found = []
        for (_, entry), (text, call) in zip(requests, calls, strict=True):
            if call is None:
                found.append(Distilled(problem="the episode does not fit into the extractor's context"))
                continue
            try:
                found.append(Distilled(read_operations(text, self.style, bool(entry)), call))
            except Malformed as error:
                found.append(Distilled(call=call, problem=str(error)))
        return found

    def merge(self, texts: Sequence[str], moment: Moment, place: str) -> tuple[list[str], Call | None]:
        """Fewer entries that say the same; the old ones where the answer cannot be used."""
        policy = self.policy()
        prompt = policy.encode_prompt(merging(texts, self.style))
        ((text, call),) = self._write(policy, [prompt], [moment.derive("extractor", place, 0)])
        merged = read_merged(text, self.style, len(texts)) if call is not None else None
        return (list(texts), None) if merged is None else (merged, call)

    def advise(self, asked: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[str]:
        """(question, the entry found for it) -> what the entry means for whoever asks; empty where the answer is of no use."""
        policy = self.policy()
        prompts = [policy.encode_prompt(advising(question, entry, self.style)) for question, entry in asked]
        return [read_advice(text, self.style) if call else "" for text, call in self._write(policy, prompts, seeds)]

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

    def earned(self, sample: Sample) -> None:
        """Into the buffer, where it will be trained on; an entry that waits there already stays one sample."""
        if not self.trained:
            return
        waiting = next((i for i, known in enumerate(self.buffer) if known.entry == sample.entry), None)
        if waiting is None:
            self.buffer.append(sample)
        else:
            self.buffer[waiting] = self.buffer[waiting].joined(sample)

    def learn(self, usage: Callable[[int], Usage], step: int) -> tuple[dict[str, float], list[int]]:
        """An update for every `batch` entries in the buffer; (metrics, means over the updates, the entries trained on).
        `usage` knows also those that have left the bank."""
        told: dict[str, list[float]] = {}
        trained: list[int] = []
        while self.trained and len(self.buffer) >= self.batch:
            taken, self.buffer = self.buffer[: self.batch], self.buffer[self.batch :]
            rewards = np.array([sample.reward for sample in taken])
            weights = np.array([reweighted(usage(sample.entry), step, self.decay, self.cooldown) for sample in taken])
            batch = extractor_batch(taken, weights * (rewards - rewards.mean()), self.temperature)
            with self._busy:
                metrics = self.policy().update(batch, (ClippedWeight(self.clip, self.clip),), self.lr)
            for name in ("loss", "grad_norm", "clipped"):
                if name in metrics:
                    told.setdefault(f"experience/extractor_{name}", []).append(metrics[name])
            told.setdefault("experience/extractor_reward", []).append(float(rewards.mean()))
            trained += [sample.entry for sample in taken]
        means = {name: float(np.mean(found)) for name, found in told.items()}
        return {**means, "experience/buffer": float(len(self.buffer))}, trained


def reweighted(usage: Usage, step: int, decay: float, cooldown: int) -> float:
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


def read_merged(answer: str, style: Style, most: int) -> list[str] | None:
    """The entries of a merge; None where the answer is of no use: then nothing is merged, and nothing lost."""
    answer = after_thought(answer)
    if style == "terse":
        found = [line.partition(":")[2].strip() for line in answer.splitlines() if line.startswith("entry:")]
    else:
        listed = _object_in(answer).get("entries")
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            return None
        found = [text.strip() for text in listed]
    found = [text for text in found if text]
    return found if 1 <= len(found) <= most and all(map(is_unicode, found)) else None


def read_advice(answer: str, style: Style) -> str:
    """Empty where it says nothing that could be handed on."""
    answer = after_thought(answer)
    if style == "terse":
        told = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    else:
        said = _object_in(answer).get("advice")
        told = said.strip() if isinstance(said, str) else ""
    return told if len(told) <= LONGEST and is_unicode(told) else ""


def _object_in(answer: str) -> Mapping[str, Any]:
    """The JSON object of an answer; an empty one where there is none."""
    first, last = answer.find("{"), answer.rfind("}")
    try:
        found = json.loads(answer[first : last + 1])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
