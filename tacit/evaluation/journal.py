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

from tacit.core.amounts import number_of
from tacit.core.errors import TacitError
from tacit.core.types import PLAIN, Trajectory
from tacit.evaluation.panels import Panel
from tacit.evaluation.rules import Rules
from tacit.evaluation.turns import KeptTurns
from tacit.runs.files import disk_errors
from tacit.runs.trajectories import trajectory_from_record, trajectory_record

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
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(text)


def split_lines(text: str) -> list[str]:
    """At line feeds only, which are kept: what a model writes may hold any other line separator there is."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
