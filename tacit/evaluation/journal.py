"""An evaluation on disk while it runs: one line per episode, so that a killed one goes on with what is missing. Turns of
episodes that are not over are in a file beside it (`turns.py`).

The first line says what is measured: panel, sampling, what the agent reads and under which condition, the model's fingerprint,
what it computes with, and by which code. The file's name is a hash of all that but the code, so a file can only be continued by
the same measurement; one begun by other code, or that cannot be read, is put aside under another name and never mixed with new
episodes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.progress import number_of
from tacit.core.protocols import ChatTokenizer, Request, Sampling, Scheduler
from tacit.core.types import PLAIN, Completion, Trajectory
from tacit.evaluation.panels import Panel, Rules
from tacit.rollout.encoding import open_scheduler
from tacit.rollout.episodes import SamplingPolicy
from tacit.runs.files import explain_disk_errors
from tacit.runs.trajectories import trajectory_from_record, trajectory_record

# Completions of episodes that are not over yet, on disk: an evaluation that was killed asks nobody for them twice.
#
# An evaluation that goes on plays an unfinished episode from its beginning. What it asks has the seeds and the prompts it had
# before, so the answers are taken from the file, and the world is soon where it was. Once the panel is played the file goes.


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
            with explain_disk_errors(self._path), self._path.open("a", encoding="utf-8") as file:
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

    def open_scheduler(self, sampling: Sampling, layer: int | None = None) -> RememberingScheduler:
        return RememberingScheduler(open_scheduler(self._policy, sampling, layer), self._turns)


class RememberingScheduler:
    def __init__(self, scheduler: Scheduler, turns: KeptTurns) -> None:
        self._scheduler, self._turns, self._submitted = scheduler, turns, 0
        self._known: list[tuple[int, Completion]] = []
        self._asked: dict[int, tuple[int, str]] = {}
        """the scheduler's request id -> ours, and the request's name"""

    def submit(self, request: Request) -> int:
        request_id, self._submitted = self._submitted, self._submitted + 1
        if (known := self._turns.find(request)) is not None:
            self._known.append((request_id, known))
        else:
            self._asked[self._scheduler.submit(request)] = (request_id, _name(request))
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        if self._known:
            known, self._known = self._known, []
            return known
        found = [(*self._asked.pop(request_id), completion) for request_id, completion in self._scheduler.wait()]
        self._turns.keep({name: completion for _, name, completion in found})
        return [(request_id, completion) for request_id, _, completion in found]

    def close(self) -> None:
        self._scheduler.close()


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


FORMAT = 1
"""of the file; raised when a line of an older one would be misread"""

Place = tuple[int, int]
"""(repeat, task's place in the panel)"""


@dataclass(frozen=True)
class Measurement:
    """Everything an outcome depends on."""

    panel: str
    panel_version: str
    panel_hash: str
    model: str
    """what was measured, in words"""
    fingerprint: str
    """hash of its weights; for what has none here, what names it"""
    sampling: Mapping[str, Any]
    max_steps: int
    seed: int
    reads: Mapping[str, Any] = field(default_factory=dict)
    """what the agent reads: the method's name and settings"""
    numbers: str = ""
    """what its weights compute with, as they did here: `float32 on cpu`; empty for what computes elsewhere or not at all"""
    code: str = ""
    """version and commit of tacit"""
    condition: Mapping[str, str] = field(default_factory=lambda: {"name": PLAIN.name})
    """how the episodes are told (`Rules.told`)"""

    @classmethod
    def of(
        cls,
        panel: Panel,
        rules: Rules,
        model: str,
        fingerprint: str,
        reads: Mapping[str, Any] | None = None,
        numbers: str = "",
        code: str = "",
    ) -> Measurement:
        sampling = json.loads(json.dumps(asdict(rules.sampling)))
        return cls(
            panel.name, panel.version, panel.hash, model, fingerprint, sampling, rules.max_steps, rules.seed, dict(reads or {}),
            numbers, code, rules.told(panel.tasks),
        )  # fmt: skip

    @property
    def settings_hash(self) -> str:
        """Of everything but the panel, the words for the model and the code. What computes elsewhere has no numbers to hash;
        the plain condition goes without saying."""
        left_out = {"panel", "panel_version", "panel_hash", "model", "code", *(() if self.numbers else ("numbers",))}
        left_out |= {"condition"} if self.condition == {"name": PLAIN.name} else set()
        own = {k: v for k, v in asdict(self).items() if k not in left_out}
        return hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def file_name(self) -> str:
        return f"{self.panel_hash}-{self.settings_hash}.jsonl"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Journal:
    """The file of one measurement. Two processes that write it at once waste their time and spoil nothing: the same episode
    twice is the same line twice."""

    def __init__(self, directory: Path, measured: Measurement) -> None:
        self.path = directory / measured.file_name
        self.measured = measured
        self.turns = KeptTurns(self.path.with_suffix(".turns"))
        self.notes: list[str] = []
        """what the user should know about a file that was there already"""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TacitError(f"cannot make the directory {directory}: {error.strerror}. Name another with --out.") from error

    def read(self, panel: Panel, repeats: int) -> dict[Place, Trajectory]:
        """The episodes already played, and the file made ready for more."""
        found: dict[Place, Trajectory] = {}
        lines = self._lines()
        if lines is None:
            self.turns.drop()
            self._append([{"format": FORMAT, **self.measured.to_json()}])
            return found
        whole = True
        for line in lines[1:]:
            try:
                record = json.loads(line)
                place, task = (record["repeat"], record["place"]), panel.tasks[record["place"]]
                if record["task"] == task.id and place[0] < repeats:
                    found[place] = trajectory_from_record(record, task)
            except (ValueError, KeyError, IndexError, TypeError):
                whole = False  # the half line of a killed write: that episode is played again
        if not whole or not lines[-1].endswith("\n"):
            self._append([], newline=not lines[-1].endswith("\n"))
        self.turns.read()
        if found:
            self.notes.append(f"played before: {number_of(len(found), 'episode')}, in {self.path} (--fresh plays anew)")
        return found

    def write(self, episodes: Sequence[tuple[Place, Trajectory]]) -> None:
        """Append a batch in one write. The score is kept to its last digit, so that the table is too."""
        self._append(
            {"repeat": repeat, "place": i, **trajectory_record(t), "score": t.score} for (repeat, i), t in episodes
        )  # fmt: skip

    def finish(self, lost: int) -> None:
        """The panel is played, but for `lost` episodes that will be played again: what they have of turns is left to them."""
        if self.turns.used:
            self.notes.append(f"kept from episodes that were not over: {number_of(self.turns.used, 'turn')}")
        if lost:
            self.notes.append(
                f"not kept, since they broke off: {number_of(lost, 'episode')}; the same command plays them again"
            )
        else:
            self.turns.drop()

    def start_afresh(self) -> None:
        """Put aside what is there."""
        if self.path.exists():
            self.notes.append(f"the episodes played before are kept in {self._put_aside('earlier')}")

    def _lines(self) -> list[str] | None:
        """The lines of a file that this measurement may continue; None where it must begin one."""
        if not self.path.exists():
            return None
        try:
            lines = split_lines(self.path.read_text(encoding="utf-8"))
            head = json.loads(lines[0])
            form, code = head["format"], head["code"]
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            self.notes.append(f"{self.path} could not be read and was put aside as {self._put_aside('damaged')}")
            return None
        if form != FORMAT:
            aside = self._put_aside(f"format{form}")
            self.notes.append(f"earlier episodes are in format {form}, not {FORMAT}: played anew, the old ones are in {aside}")
            return None
        if code != self.measured.code:
            aside = self._put_aside(code)
            self.notes.append(
                f"earlier episodes were played by tacit {code}, and this is {self.measured.code}: played anew, not mixed; "
                f"the old ones are in {aside}"
            )
            return None
        return lines

    def _put_aside(self, why: str) -> Path:
        word = re.sub(r"[^\w.+-]+", "-", why) or "earlier"
        aside = self.path.with_suffix(f".{word}.jsonl")
        number = 1
        while aside.exists():
            number += 1
            aside = self.path.with_suffix(f".{word}-{number}.jsonl")
        self.path.rename(aside)
        return aside

    def _append(self, records: Any, newline: bool = False) -> None:
        text = ("\n" if newline else "") + "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with explain_disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(text)


def split_lines(text: str) -> list[str]:
    """At line feeds only, which are kept: what a model writes may hold any other line separator there is."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
