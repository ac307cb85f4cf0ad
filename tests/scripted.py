"""Used by most tests instead of a model: a scripted policy, and groups built from numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tacit.companions.experience.extractor import ExtractorSettings
from tacit.core.method import Resources
from tacit.core.protocols import PolicyHooks
from tacit.core.types import Completion, Group, Observation, Prompt, Step, StopReason, Task, Trajectory
from tacit.worlds.countdown.world import solve

TASK = Task("toy", "toy/0", "only", "train", 0, "do it")


def make_step(tokens: int = 1, valid: bool = True, logprobs: Sequence[float] | None = None, first: int = 0) -> Step:
    """A step whose completion has this many tokens: first, first + 1, …"""
    values = np.full(tokens, -1.0) if logprobs is None else np.asarray(logprobs)
    completion = Completion(np.arange(first, first + tokens), values, "words", "stop")
    return Step(Observation("here"), Prompt("task", "here"), np.array([first]), completion, "act", valid)


def make_group(
    shape: Sequence[Sequence[int]],
    success: Sequence[bool] | None = None,
    valid: Sequence[Sequence[bool]] | None = None,
    stops: Sequence[StopReason] | None = None,
    task: Task = TASK,
) -> Group:
    """`shape[i][t]` is the number of completion tokens of step t of member i."""
    members = []
    for i, tokens in enumerate(shape):
        won = bool(success[i]) if success is not None else False
        stop = stops[i] if stops is not None else (StopReason.SUCCESS if won else StopReason.STEP_LIMIT)
        steps = tuple(make_step(n, valid is None or valid[i][t], first=10 * i + t) for t, n in enumerate(tokens))
        members.append(Trajectory(task, steps, won, float(won), stop, Observation("end")))
    return Group(task, tuple(members))


class Words:
    """A lossless tokenizer of words and the gaps between them. New words get new ids."""

    def __init__(self, context_limit: int = 100_000) -> None:
        self.context_limit = context_limit
        self._words = [""]
        """id 0 ends a completion"""
        self._ids: dict[str, int] = {}

    def encode_prompt(self, text: str) -> np.ndarray:
        return np.array([self._id(word) for word in re.findall(r"\s+|\S+", text)], dtype=np.int64)

    def encode_completion(self, text: str) -> np.ndarray:
        return np.append(self.encode_prompt(text), 0)

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(self._words[t] for t in tokens)

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


class ScriptedPolicy(Words, PolicyHooks):
    """Answers each prompt with `answer(prompt text, request seed)` and records the requests."""

    def __init__(self, answer: Callable[[str, int], str], context_limit: int = 100_000) -> None:
        super().__init__(context_limit)
        self._answer = answer
        self.calls: list[list[tuple[str, int]]] = []
        """(prompt, seed) of every request, one list per call"""
        self.samplings: list = []
        self.updates: list[tuple] = []
        self.scored = 0
        self.weights = "untrained"

    def sample(self, requests, sampling, hidden=None) -> list[Completion]:
        self.calls.append([(self.decode(r.prompt), r.seed) for r in requests])
        self.samplings.append(sampling)
        return [self._complete(*request) for request in self.calls[-1]]

    def _complete(self, prompt: str, seed: int) -> Completion:
        text = self._answer(prompt, seed)
        tokens = self.encode_completion(text)
        return Completion(tokens, np.full(len(tokens), -0.5, np.float32), text, "stop")

    def logprobs(self, prompts, completions, temperature=1.0) -> list[np.ndarray]:
        self.scored += 1
        return [np.full(len(c), -0.75, np.float32) for c in completions]

    def values(self, prompts) -> np.ndarray:
        return np.array([len(p) for p in prompts], dtype=np.float32)

    def hidden_states(self, prompts, layer, pooling="last") -> np.ndarray:
        """Equal for prompts with an equal beginning."""
        self.encoded = getattr(self, "encoded", 0) + len(prompts)
        return np.array([np.resize(np.asarray(p, dtype=np.float32) + 1.0, 8) for p in prompts], dtype=np.float32)

    def reference(self):
        return self

    def freeze_reference(self) -> None:
        pass

    def begin_stage(self) -> None:
        self.stages = getattr(self, "stages", 0) + 1

    def check_layer(self, layer) -> None:
        pass

    def update(self, batch, losses, lr) -> dict[str, float]:
        self.updates.append((batch, tuple(losses), lr))
        return {"loss": float(len(self.updates))}

    def save(self, directory, optimizer=True) -> None:
        directory.mkdir(parents=True)
        (directory / "weights").write_text(self.weights)

    def load(self, directory) -> None:
        self.weights = (directory / "weights").read_text()

    def digest(self) -> str:
        return hashlib.sha256(self.weights.encode()).hexdigest()


def solve_countdown(prompt: str, seed: int = 0) -> str:
    """The expert's answer to a terse Countdown prompt."""
    numbers, target = prompt.splitlines()[-1].split("[")[0].rstrip("! ").split(" > ")
    plan = solve(tuple(int(n) for n in numbers.split()), int(target))
    return str(plan[0]) if plan else "reset"


def stumble_through_countdown(prompt: str, seed: int) -> str:
    """An expert whose every fourth answer is invalid. Answers depend only on the prompt and the seed."""
    return ("hm", solve_countdown(prompt), solve_countdown(prompt), solve_countdown(prompt))[seed % 4]


def group_extractor(options: dict) -> dict:
    """Settings of a method, with `extractor_batch=4` as `extractor=ExtractorSettings(batch=4)`."""
    own = {key.removeprefix("extractor_"): value for key, value in options.items() if key.startswith("extractor_")}
    rest = {key: value for key, value in options.items() if not key.startswith("extractor_")}
    return {**rest, "extractor": ExtractorSettings(**own)}


class Kit(Resources):
    """Resources without a run: every policy is this one, and directories are in `place`."""

    def __init__(self, policy, place: Path) -> None:
        self._policy, self._place = policy, place
        self._shared: dict = {}

    def policy(self, name: str):
        return lambda: self._policy

    def directory(self, name: str) -> Path:
        return self._place / name

    def shared(self, name: str, like, make):
        return self._shared.setdefault(name, make())
