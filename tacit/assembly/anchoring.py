"""Names of the user's own files as they are written down: with their whole path, so that a run is found again from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.engines.models.bases import BASES
from tacit.engines.models.tiny import TINY_SIZES

Document = dict[str, Any]


def anchored(document: Document) -> Document:
    """A run's settings in which every file or directory that is there has its whole path: worlds, methods and engines of the
    user's own, models, recorded episodes, panels. Other names are left as they are."""
    whole = dict(document)
    whole["world"] = ",".join(anchored_name(part.strip()) for part in document["world"].split(","))
    whole["model"] = _model(document["model"])
    method, engine = document["method"], document["engine"]
    whole["method"] = method | {"name": "+".join(map(anchored_name, method["name"].split("+")))}
    whole["engine"] = engine | {"name": anchored_name(engine["name"])}
    whole |= _files(document)
    if "worlds" in document:
        whole["worlds"] = {anchored_name(name): {**own, **_files(own)} for name, own in document["worlds"].items()}
    if "policies" in document:
        whole["policies"] = {
            name: {**own, **({"model": _model(own["model"])} if "model" in own else {})}
            for name, own in document["policies"].items()
        }
    return whole


def anchored_name(name: str) -> str:
    """`guess.py:GUESS` (`=0.5` behind it, where it has a share) as `/home/me/guess.py:GUESS`."""
    file, colon, own = name.partition(".py:")
    return f"{anchored_path(f'{file}.py')}:{own}" if colon else name


def anchored_path(text: str) -> str:
    path = Path(text).expanduser()
    return str(path.absolute()) if text and path.exists() else text


def _model(name: str) -> str:
    return name if name in (*TINY_SIZES, *BASES) else anchored_path(name)


def _files(settings: Mapping[str, Any]) -> Document:
    """The tables that name files, where they are there."""
    found = {}
    for table, field in (("sft", "from"), ("evaluation", "panel")):
        own = settings.get(table)
        if isinstance(own, Mapping) and isinstance(own.get(field), str):
            found[table] = {**own, field: anchored_path(own[field])}
    return found
