"""What was run: the settings that are somebody's choice first, then all of them, versions, and the command to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.report.markup import Child, Markup, join, tag
from tacit.report.run_files import RunFiles
from tacit.report.tables import Column, folded, pairs, table

Place = tuple[str, ...]
Flat = dict[Place, Any]
UNPREFIXED = ("method", "schedule")
"""sections whose flags stand without their name: `--kl`, `--groups`"""
NAMED_ELSEWHERE = (("world",), ("method", "name"), ("model",), ("seed",), ("out",))


def provenance(run: RunFiles, defaults: Mapping[str, Any] | None) -> Markup:
    """`defaults` are the settings of the same method, world and model where nothing else is said; None where not known."""
    told = flat(run.settings)
    usual = flat(defaults) if defaults is not None else {}
    chosen = {p: v for p, v in differing(told, usual).items() if p not in NAMED_ELSEWHERE} if defaults is not None else {}
    parts: list[Child] = []
    if defaults is None:
        parts.append(tag("p", "The defaults of this method are not known here, so what was chosen cannot be told apart."))
    elif chosen:
        rows = [[tag("code", flag(place)), shown(value), shown(usual.get(place))] for place, value in chosen.items()]
        columns = [Column("setting", False), Column("here", False), Column("default", False)]
        parts.append(table(columns, rows, "Settings that differ from the defaults"))
    else:
        parts.append(tag("p", "Every setting is the default."))
    parts = [tag("div", pairs(_machine(run)), tag("div", parts), cls="two")]
    if defaults is not None:
        parts.append(tag("h3", "To repeat it"))
        parts.append(tag("pre", _unbroken(command(told, usual)), cls="command", tabindex="0"))
    everything = [[tag("code", ".".join(place)), shown(value)] for place, value in told.items()]
    parts.append(folded(f"All {len(told)} settings", table([Column("setting", False), Column("value", False)], everything)))
    return join(parts)


def flat(settings: Mapping[str, Any], place: Place = ()) -> Flat:
    """Leaf settings by their place."""
    found: Flat = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, (*place, key))
        else:
            found[(*place, key)] = value
    return found


def differing(told: Flat, usual: Flat) -> Flat:
    return {place: value for place, value in told.items() if place not in usual or usual[place] != value}


def command(told: Flat, usual: Flat) -> list[str]:
    """The words that make the same run again, into a directory of its own name unless `out` is said."""
    words = ["tacit", "train", "--world", str(told.get(("world",), "")), "--method", str(told.get(("method", "name"), ""))]
    words += ["--model", str(told.get(("model",), "")), "--seed", str(told.get(("seed",), 0))]
    for place, value in differing(told, usual).items():
        if place in NAMED_ELSEWHERE:
            continue
        name = flag(place)
        if isinstance(value, bool):
            words.append(name if value else f"--no-{name[2:]}")
        else:
            words += [name, _word(value)]
    return words


def _unbroken(words: Sequence[str]) -> list[Child]:
    """The command on one line for whoever copies it; on the page it breaks between a flag and the next, never inside one."""
    pieces: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not pieces:
            pieces.append([])
        pieces[-1].append(word)
    return [[" " if i else "", tag("span", shlex.join(piece))] for i, piece in enumerate(pieces)]


def flag(place: Place) -> str:
    """
    >>> flag(("schedule", "group_size")), flag(("sft", "steps"))
    ('--group-size', '--sft.steps')
    """
    kept = place[1:] if place[0] in UNPREFIXED and len(place) > 1 else place
    return "--" + ".".join(kept).replace("_", "-")


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def shown(value: Any) -> Child:
    if isinstance(value, bool):
        return tag("code", "on" if value else "off")
    if value in (None, "", []):
        return tag("code", "none", cls="quiet")
    return tag("code", _word(value))


def _machine(run: RunFiles) -> Sequence[tuple[Child, Child]]:
    versions, settings = run.versions, run.settings
    raw_method = settings.get("method")
    method = raw_method.get("name", "") if isinstance(raw_method, Mapping) else raw_method
    rows: list[tuple[Child, Child]] = [
        ("world", settings.get("world", "")),
        ("method", method),
        ("model", settings.get("model", "")),
        ("seed", settings.get("seed", "")),
    ]
    if versions:
        rows += [
            ("code", code_version(versions)),
            ("machine", versions.get("machine", "")),
            ("python", versions.get("python", "")),
        ]
        libraries = versions.get("libraries")
        if isinstance(libraries, Mapping):
            rows.append(("libraries", ", ".join(f"{name} {v}" for name, v in libraries.items() if v)))
    rows.append(("directory", tag("code", run.path)))
    if (run.summary or {}).get("digest"):
        rows.append(("weights", tag("code", (run.summary or {})["digest"])))
    return rows


def code_version(versions: Mapping[str, Any]) -> str:
    git = versions.get("git")
    commit = ""
    if isinstance(git, Mapping) and git.get("commit"):
        commit = f", commit {str(git['commit'])[:10]}{' with changes not committed' if git.get('changed') else ''}"
    return f"tacit {versions.get('tacit', '?')}{commit}"
