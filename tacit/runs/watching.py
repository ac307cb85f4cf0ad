"""Says once, while a run goes on, that its policy does not learn or seems to collapse; `alarms.jsonl` keeps what was said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tacit.runs.alarms import Alarm, alarms_at, first_alarms, measured_falls
from tacit.runs.files import write_text

ALARMS = "alarms.jsonl"


class Watcher:
    """Holds the numbers of every iteration of practice. Alarms follow from them alone, so a resumed run, given the numbers it
    kept, ends with the file of one that was never killed."""

    def __init__(self, run: Path) -> None:
        self._path = run / ALARMS
        self._records: list[Mapping[str, Any]] = []
        self._rung: dict[str, Alarm] = {}

    def restore(self, records: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin again after these iterations and evaluations."""
        self._records = list(records)
        examples = {(alarm.name, alarm.step): alarm.example for alarm in read_alarms(self._path.parent)}
        self._rung = {
            alarm.name: replace(alarm, example=examples.get((alarm.name, alarm.step), ""))
            for alarm in sorted([*first_alarms(self._records), *measured_falls(evaluations)], key=lambda alarm: alarm.step)
        }
        if self._rung or self._path.exists():
            self._write()

    def see(self, step: int, metrics: Mapping[str, Any], examples: Mapping[str, str] | None = None) -> list[Alarm]:
        """Alarms that ring for the first time. `examples` are what they would show, by name."""
        self._records.append({"step": step, **metrics})
        found = alarms_at(self._records)
        return self._ring([replace(alarm, example=(examples or {}).get(alarm.name, "")) for alarm in found])

    def see_measured(self, evaluations: Sequence[Mapping[str, Any]]) -> list[Alarm]:
        """The same of all evaluations until now."""
        return self._ring(measured_falls(evaluations))

    def _ring(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        fresh = [alarm for alarm in alarms if alarm.name not in self._rung]
        if fresh:
            self._rung |= {alarm.name: alarm for alarm in fresh}
            self._write()
        return fresh

    def _write(self) -> None:
        write_text(self._path, "".join(json.dumps(_record(alarm), ensure_ascii=False) + "\n" for alarm in self._rung.values()))


def _record(alarm: Alarm) -> dict[str, Any]:
    return {name: value for name, value in asdict(alarm).items() if name != "example" or value}


def read_alarms(run: Path) -> list[Alarm]:
    """What a run warned of."""
    path = run / ALARMS
    if not path.exists():
        return []
    return [Alarm(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
