"""What was run: the settings that are somebody's choice first, then all of them, versions, and the command to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tacit.report.run_files import Record, RunFiles, table_of

Place = tuple[str, ...]
Flat = dict[Place, Any]
UNPREFIXED = ("method", "schedule")
"""sections whose flags stand without their name: `--kl`, `--groups`"""
NAMED = {("world",): "--world", ("method", "name"): "--method", ("model",): "--model", ("seed",): "--seed"}
"""what every command names"""
CODE = Markup("<code>{}</code>")


def provenance(run: RunFiles, defaults: Record | None) -> dict[str, Any]:
    """`defaults` are the settings of the same method, world and model where nothing else is said; None where not known."""
    told, usual = flat(run.settings), flat(defaults or {})
    chosen = {place: value for place, value in differing(told, usual).items() if place not in NAMED}
    facts = [(key, name_of(run.settings, key)) for key in ("world", "method", "model", "seed")] + made_by(run.versions)
    digest = run.summary.get("digest")
    return {
        "facts": [*facts, ("directory", CODE.format(run.path)), *([("weights", CODE.format(digest))] if digest else [])],
        "defaults_known": defaults is not None,
        "chosen": [(CODE.format(flag(place)), shown(value), shown(usual.get(place))) for place, value in chosen.items()],
        "command": [shlex.join(piece) for piece in command(told, usual)],
        "settings": [(CODE.format(".".join(place)), shown(value)) for place, value in told.items()],
    }


def made_by(versions: Record) -> list[tuple[str, str]]:
    """Code, machine and libraries, where they are on record."""
    git, libraries = table_of(versions.get("git")), table_of(versions.get("libraries"))
    changed = " with changes not committed" if git.get("changed") else ""
    code = f"tacit {versions.get('tacit')}" + (f", commit {str(git['commit'])[:10]}{changed}" if git.get("commit") else "")
    used = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    machine, python = versions.get("machine"), versions.get("python")
    rows = (("code", versions and code), ("machine", machine), ("python", python), ("libraries", used))
    return [(name, word(value)) for name, value in rows if value]


def flat(settings: Record, place: Place = ()) -> Flat:
    """Leaf settings by their place."""
    found: Flat = {}
    for key, value in settings.items():
        found |= flat(value, (*place, key)) if isinstance(value, Mapping) else {(*place, key): value}
    return found


def differing(told: Flat, usual: Flat) -> Flat:
    """Where the run lies is not a setting."""
    return {p: value for p, value in told.items() if p != ("out",) and (p not in usual or usual[p] != value)}


def command(told: Flat, usual: Flat) -> list[list[str]]:
    """The words that make the same run again, a flag with its value at a time. It goes into a directory of its own name."""
    pieces = [["tacit", "train"], *([name, word(told[place])] for place, name in NAMED.items() if place in told)]
    for place, value in differing(told, usual).items():
        name = flag(place)
        if isinstance(value, bool):
            pieces.append([name if value else f"--no-{name[2:]}"])
        elif place not in NAMED:  # what begins with a dash would be taken for a flag
            pieces.append([f"{name}={word(value)}"] if word(value).startswith("-") else [name, word(value)])
    return pieces


def flag(place: Place) -> str:
    """--group-size of (schedule, group_size), --sft.steps of (sft, steps)."""
    kept = place[1:] if place[0] in UNPREFIXED and len(place) > 1 else place
    return "--" + ".".join(kept).replace("_", "-")


def word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)


def shown(value: Any) -> Markup:
    return CODE.format({True: "on", False: "off"}[value] if isinstance(value, bool) else word(value) or "none")


def name_of(settings: Record, key: str) -> str:
    """The world's, the method's or the model's name, which may stand in a table of its settings."""
    value = settings.get(key, "")
    return word(value.get("name", "") if isinstance(value, Mapping) else value)
