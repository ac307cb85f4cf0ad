"""Keyword arguments as what flags say: `kl=0.0`, `groups=16`, `sft={"steps": 200}`, `engine={"device": "cpu"}`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from tacit.assembly.flags import ELSEWHERE
from tacit.assembly.options import method_options, methods_with, section_options, train_options
from tacit.core.errors import TacitError

SECTIONS = ("schedule", *section_options())
NAMED = ("world", "method", "model", "out", "config", "resume", "callbacks", "quiet")
"""of `tacit.train` itself"""
WHOLE = ("worlds", "policies")
"""tables that hold tables by name"""


def said_by(settings: Mapping[str, Any], method: str) -> dict[tuple[str, ...], Any]:
    """Place in a settings document -> value, for every keyword; one that no setting has is refused."""
    places = {option.place[-1]: option.place for option in (*method_options(method), *train_options())}
    said: dict[tuple[str, ...], Any] = {}
    for key, value in settings.items():
        if key in WHOLE:
            said[key,] = _table(key, value)
        elif key == "engine" and isinstance(value, str):
            said["engine", "name"] = value
        elif key in SECTIONS:
            said.update({(key, name): setting for name, setting in _table(key, value).items()})
        elif key in places:
            said[places[key]] = value
        else:
            raise _unknown(key, method, [*places, *SECTIONS, *WHOLE, *NAMED])
    return said


def _table(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TacitError(f"{key} = {value!r} must be a dict of settings, such as {key}={{…}}.")
    return value


def _unknown(key: str, method: str, known: list[str]) -> TacitError:
    owners = methods_with(f"--{key.replace('_', '-')}")
    near = [ELSEWHERE[key]] if ELSEWHERE.get(key) in known else difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    inside = [section for section, options in section_options().items() if any(o.place[-1] == key for o in options)]
    if owners:
        hint = f"It belongs to {', '.join(owners)}: method={owners[0]!r}."
    elif inside:
        hint = f"Write {inside[0]}={{{key!r}: …}}."
    else:
        hint = f"Did you mean {near[0]!r}?" if near else "`tacit train --help` shows what there is."
    return TacitError(f"unknown setting {key!r} of a run with method {method!r}. {hint}")
