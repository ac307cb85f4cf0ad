"""Completions of episodes that are not over yet, on disk: an evaluation that was killed asks nobody for them twice.

An evaluation that goes on plays an unfinished episode from its beginning. What it asks has the seeds and the prompts it had
before, so the answers are taken from the file, and the world is soon where it was. Once the panel is played the file goes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.protocols import ChatTokenizer, Desk, Request, Sampling
from tacit.core.types import Completion
from tacit.rollout.desks import open_desk
from tacit.rollout.episodes import SamplingPolicy
from tacit.runs.files import disk_errors


class KeptTurns:
    """The file: a line per completion, by its request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Completion] = {}
        self.used = 0
        """how many were taken from the file"""

    def read(self) -> None:
        """What is there. The half line of a killed write is asked for again."""
        self._known = {}
        lines = self._path.read_text(encoding="utf-8").split("\n") if self._path.exists() else []
        for line in lines:
            try:
                record = json.loads(line)
                self._known[record["request"]] = _completion(record)
            except (ValueError, KeyError, TypeError):
                continue

    def find(self, request: Request) -> Completion | None:
        found = self._known.get(_name(request))
        self.used += found is not None
        return found

    def keep(self, answers: Mapping[str, Completion]) -> None:
        usable = {name: completion for name, completion in answers.items() if completion.finish != "unusable"}
        if usable:
            # A line feed first: the last write may have been cut off.
            text = "".join(f"\n{json.dumps(_record(name, c), ensure_ascii=False)}" for name, c in usable.items())
            with disk_errors(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(text)

    def drop(self) -> None:
        self._known = {}
        self._path.unlink(missing_ok=True)


class Remembering:
    """A policy that is not asked again for what it has said before."""

    def __init__(self, policy: SamplingPolicy, turns: KeptTurns) -> None:
        self._policy, self._turns = policy, turns
        self.context_limit = policy.context_limit
        self.encode_prompt, self.encode_completion, self.decode = policy.encode_prompt, policy.encode_completion, policy.decode
        self.sample = policy.sample
        if (together := getattr(policy, "encode_prompts", None)) is not None:
            self.encode_prompts = together
        if isinstance(policy, ChatTokenizer):
            self.encode_chat, self.encode_answer = policy.encode_chat, policy.encode_answer

    def desk(self, sampling: Sampling, layer: int | None = None) -> RememberingDesk:
        return RememberingDesk(open_desk(self._policy, sampling, layer), self._turns)


class RememberingDesk:
    def __init__(self, desk: Desk, turns: KeptTurns) -> None:
        self._desk, self._turns, self._tickets = desk, turns, 0
        self._known: list[tuple[int, Completion]] = []
        self._asked: dict[int, tuple[int, str]] = {}
        """the desk's ticket -> ours, and the request's name"""

    def submit(self, request: Request) -> int:
        ticket, self._tickets = self._tickets, self._tickets + 1
        if (known := self._turns.find(request)) is not None:
            self._known.append((ticket, known))
        else:
            self._asked[self._desk.submit(request)] = (ticket, _name(request))
        return ticket

    def wait(self) -> list[tuple[int, Completion]]:
        if self._known:
            known, self._known = self._known, []
            return known
        found = [(*self._asked.pop(ticket), completion) for ticket, completion in self._desk.wait()]
        self._turns.keep({name: completion for _, name, completion in found})
        return [(ticket, completion) for ticket, _, completion in found]

    def close(self) -> None:
        self._desk.close()


def _name(request: Request) -> str:
    """Its seed is its episode and turn; the prompt tells whether the turn is still the same."""
    return f"{request.seed:x}-{hashlib.sha256(request.prompt.tobytes()).hexdigest()[:16]}"


def _record(name: str, completion: Completion) -> dict[str, Any]:
    return {
        "request": name,
        "wrote": completion.text,
        "tokens": len(completion.tokens),
        "logprob": float(completion.logprobs.sum()),
        "finish": completion.finish,
        **({"read": completion.read} if completion.read else {}),
    }


def _completion(record: Mapping[str, Any]) -> Completion:
    """As many tokens as there were, and what they had together; which they were is not kept."""
    count = record["tokens"]
    each = np.full(count, record["logprob"] / max(1, count), np.float32)
    return Completion(np.zeros(count, np.int64), each, record["wrote"], record["finish"], read=record.get("read", 0))
