"""In which settings do the columns of a comparison differ, and is that what they are there to show?

A column says what it is about by naming settings in its table, `[methods.X]` or `[worlds.W.methods.X]`. A setting that differs
between columns which do not name it differs by their methods' defaults alone, and what the table shows may be its doing. It is
refused, unless the file says `unequal = ["invalid_penalty"]`; then it is told as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.core.errors import TacitError

Document = dict[str, Any]
BY_METHOD = ("method", "schedule")
"""sections whose defaults are a method's own; elsewhere all columns have the same, or what their method cannot do without"""


@dataclass(frozen=True)
class Difference:
    """A setting that two columns of a world have, and have otherwise."""

    setting: str
    """as a column would name it: `invalid_penalty`, `schedule.lr`"""
    values: Mapping[str, Any]
    """by column; a column whose method has no such setting is absent"""
    named_by: tuple[str, ...]
    """the columns that name it"""
    unequal: bool
    """whether columns differ in it that do not name it"""

    def __str__(self) -> str:
        """`buffer: 256 in reuserl; 0 in reuserl-batch`"""
        columns: dict[str, list[str]] = {}
        for column, value in self.values.items():
            columns.setdefault(_shown(value), []).append(column)
        told = "; ".join(f"{value} in {', '.join(names)}" for value, names in columns.items())
        return f"{self.setting}: {told}" + (" (by the methods' defaults)" if self.unequal else "")


def differences(documents: Mapping[str, Document], tables: Mapping[str, Iterable[Document]]) -> list[Difference]:
    """Between the columns of one world: their complete documents, and the tables in which each says what is its own."""
    columns = {column: dict(_settings(document)) for column, document in documents.items()}
    named = {column: {place for table in own for place in _named(table)} for column, own in tables.items()}
    found = []
    for place in dict.fromkeys(place for settings in columns.values() for place in settings):
        values = {column: settings[place] for column, settings in columns.items() if place in settings}
        if any(value != next(iter(values.values())) for value in values.values()):
            section, _, name = place.partition(".")
            setting = name if section == "method" else place
            rest = [value for column, value in values.items() if setting not in named[column]]
            unequal = section in BY_METHOD and any(value != rest[0] for value in rest)
            found.append(Difference(setting, values, tuple(c for c in values if setting in named[c]), unequal))
    return found


def check_fair(found: Mapping[str, Sequence[Difference]], allowed: Sequence[str]) -> list[str]:
    """Refuse what is unequal and not said to be, in any world; else a sentence for each that is."""
    unequal = [(world, each) for world, own in found.items() for each in own if each.unequal]
    refused = {each.setting: f"In {world}, {each}" for world, each in reversed(unequal) if each.setting not in allowed}
    if refused:
        settings = ", ".join(f'"{setting}"' for setting in reversed(refused))
        raise TacitError(
            f"columns differ in what none of them is about. {'. '.join(reversed(refused.values()))}. Give all the same under "
            f"[common.method] or [common.schedule], name the setting in the [methods.…] table of the column that is about it, "
            f"or write `unequal = [{settings}]` to have it told beside the table."
        )
    for setting in allowed:
        if setting not in {each.setting for _, each in unequal}:
            raise TacitError(f"unequal names {setting!r}, which is not: all columns have the same, or name it. Leave it out.")
    return [f"unequal in {world}, and no column is about it: {each}." for world, each in unequal]


def read_unequal(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TacitError(f'unequal must be a list of settings such as ["invalid_penalty", "schedule.lr"], not {value!r}.')
    return tuple(name.replace("-", "_") for name in value)


def _settings(document: Document) -> Iterator[tuple[str, Any]]:
    """What columns may differ in: `method.kl`, `schedule.lr`, `sft.tasks`, `engine.lora_rank`, `policies.extractor.model`."""
    for section in ("method", "schedule", "sft", "engine", "policies"):
        for name, value in _leaves(document.get(section, {})):
            if (section, name) != ("method", "name"):
                yield f"{section}.{name}", value


def _named(table: Document) -> Iterator[str]:
    return (name for name, _ in _leaves(table))


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value with its path, however deep tables lie in it."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", below) for name, below in _leaves(value))
        else:
            yield key, value


def _shown(value: Any) -> str:
    if value is None or isinstance(value, list):
        return " + ".join(map(str, value or ())) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
