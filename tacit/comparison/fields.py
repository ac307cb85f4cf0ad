"""The parts of a comparison's file, each refused with the reason where it is not what it should be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tacit.assembly.options import method_options
from tacit.assembly.recipe import Document
from tacit.core.errors import TacitError, unknown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")


def read_seeds(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in value):
        raise TacitError(f"seeds must be a list of whole numbers such as [0, 1, 2], not {value!r}: each is one run per method.")
    if len(set(value)) < len(value):
        raise TacitError(f"seeds = {value} names a seed twice; the same run again says nothing new.")
    return tuple(value)


def read_thresholds(value: Any) -> tuple[float, ...]:
    whole = isinstance(value, list | tuple) and all(isinstance(v, int | float) and 0 < v <= 1 for v in value)
    if not whole:
        raise TacitError(f"thresholds must be a list of success shares above 0 and at most 1, not {value!r}.")
    return tuple(sorted(float(v) for v in value))


def read_names(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise TacitError(f"{key} must be a list of names, not {value!r}.")
    return tuple(dict.fromkeys(value))


def read_tables(document: Document, kind: str) -> dict[str, Document]:
    tables = document.get(kind)
    if not isinstance(tables, Mapping) or not tables:
        raise TacitError(f"the file names no {kind}: add at least one table [{kind}.NAME].")
    for name in tables:
        check_name(name, kind.removesuffix("s"))
    return {name: read_table(table, f"{kind}.{name}") for name, table in tables.items()}


def check_name(name: str, kind: str) -> None:
    if not NAME.fullmatch(name):
        raise TacitError(f"{kind} name {name!r} becomes a directory: use letters, digits and . _ + = - only.")


def read_shared(value: Any, where: str) -> Document:
    document = read_table(value, where)
    for key in ("seed", "out"):
        if key in document:
            raise TacitError(f"[{where}] says {key!r}; the comparison gives every run its own: leave it out.")
    if "method" in document:
        document["method"] = read_table(document["method"], f"{where}.method")
    return document


def read_table(value: Any, where: str) -> Document:
    """A table with its keys, and those of the tables in it, spelled with underscores."""
    if not isinstance(value, Mapping):
        raise TacitError(f"[{where}] must be a table of settings, not {value!r}.")
    keep = where.endswith(".methods")  # names, not settings
    return {
        key if keep else key.replace("-", "_"): read_table(inner, f"{where}.{key}") if isinstance(inner, Mapping) else inner
        for key, inner in value.items()
    }


def read_text(document: Document, key: str, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise TacitError(f"{key} must be text, not {value!r}.")
    return value


def check_known(document: Document, keys: Iterable[str], where: str) -> None:
    for key in document:
        if key not in keys:
            raise unknown(f"key in {where}", key, keys)


def merge(*documents: Mapping[str, Any]) -> Document:
    """Later ones win, table by table."""
    merged: Document = {}
    for document in documents:
        for key, value in document.items():
            before = merged.get(key)
            merged[key] = merge(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def having(settings: Mapping[str, Any], method: str) -> Document:
    """Those of the settings that a method has."""
    own = _settings_of(method)
    return {key: value for key, value in settings.items() if key in own}


def check_shared_settings(shared: Document, methods: Iterable[str], world: str) -> None:
    """Settings for all methods are passed over where a method has no such thing, but one that none has is a mistake."""
    known = set().union(*map(_settings_of, methods))
    for key in shared.get("method", {}):
        if key == "name":
            raise TacitError("methods are named under [methods]; [common.method] and [worlds.….method] hold their settings.")
        if key not in known:
            raise unknown(f"setting of the methods in world {world!r}", key, known)


def _settings_of(method: str) -> set[str]:
    return {option.place[1] for option in method_options(method) if option.place[0] == "method"}
