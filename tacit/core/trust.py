"""Trust in code and endpoints that files name.

What you type on the command line or pass from Python may be imported. What a file names (a run, a module, a settings file)
may be imported if it is a registered name; anything else needs `--trust-code`, `tacit.trust_code()` or TACIT_TRUST_CODE=1.
An endpoint may be called if you type its address, pass it from Python or write it into your settings file; an endpoint that
only a run or module names needs the same trust.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError

FLAG = "--trust-code"
HELP = "import code that a run, module or settings file names (worlds, methods, engines, model classes)"
VARIABLE = "TACIT_TRUST_CODE"
"""environment variable, inherited by child processes: `1`, or the names and endpoints to trust, one per line"""
EVERYTHING = "1"
DEFAULT_ENDPOINTS = {("http://localhost:8000/v1", "OPENAI_API_KEY"), ("", "TINKER_API_KEY")}  # default (URL, key variable)
ADDRESS = re.compile(r"(?:https?|ray)://[^\s\"',{}\[\]]+")
UNSAFE = re.compile(r"(?:--(?:[\w-]+\.)*|\+)(sandbox=none|server[_-]python=[^=]+)")  # settings that could execute any code


class UntrustedCode(TacitError):
    """A file names code that is neither registered nor trusted."""


def trust_code() -> None:
    """Trust all code that files name, in this process and its children."""
    os.environ[VARIABLE] = EVERYTHING


_trusts = ContextVar("trusts", default=True)


def is_code_trusted() -> bool:
    return _trusts.get() and os.environ.get(VARIABLE) == EVERYTHING


@contextmanager
def trust_nothing() -> Iterator[None]:
    """Within this context only registered names may be imported, whatever the user trusts: for pages about untrusted runs."""
    before = _trusts.set(False)
    try:
        yield
    finally:
        _trusts.reset(before)


def trust_names(*values: Any) -> None:
    """Trust the names in these texts and tables (`package.module:NAME`, `file.py:NAME`, or several as in `a.py:A=0.5,b.py:B`
    and `a+b`), their endpoints, and their unsafe settings."""
    texts = list(_find_texts(values))
    _trust({_identify(part) for text in texts for part in re.split("[,+=]", text) if ":" in part})
    _trust({setting.replace("server-", "server_", 1) for text in texts for setting in UNSAFE.findall(text)})
    trust_endpoints(texts)


def trust_endpoints(*values: Any) -> None:
    """Trust the endpoints in these texts and tables, such as the user's own settings file."""
    _trust({address.rstrip("/") for text in _find_texts(values) for address in ADDRESS.findall(text)})


def _trust(names: set[str]) -> None:
    if not is_code_trusted():
        trusted = os.environ.get(VARIABLE, "").splitlines()
        os.environ[VARIABLE] = "\n".join(sorted({*trusted, *(name for name in names if name.isprintable())}))


def _find_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _find_texts((*value.keys(), *value.values()))
        yield from (f"--{key}={inner}" for key, inner in value.items() if isinstance(inner, str))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _find_texts(inner)


@contextmanager
def trust_command_line(words: Sequence[str]) -> Iterator[None]:
    """Within this context (one command), trust the names among the words that the user typed; with --trust-code, everything."""
    before, used_before = os.environ.get(VARIABLE), {*_used_trust}
    _used_trust.clear()
    _used_trust.update({FLAG} & {*words})
    trust_names(*words, *map("=".join, pairwise(words)))
    if FLAG in words:
        trust_code()
    try:
        yield
    finally:
        _used_trust.clear()
        _used_trust.update(used_before)
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


_used_trust = set[str]()  # trusted names and endpoints that this command used


def flag_for_later(settings: Mapping[str, Any] | None = None) -> str:
    """` --trust-code` if later commands on the run need it, else empty. They do if this command used trusted code or
    endpoints, or if these settings name code that is not registered: later commands read the names from the run."""
    parts = [(settings or {}).get(key) for key in ("world", "method", "engine")]
    names = [str(part.get("name") if isinstance(part, Mapping) else part) for part in parts]
    has_user_code = any(":" in name and not name.startswith("tacit.") for text in names for name in re.split("[,+=]", text))
    return f" {FLAG}" if has_user_code or _used_trust else ""


def add_flag(message: str) -> str:
    """The message with `flag_for_later` in its commands on runs."""
    return re.sub(r"`(tacit (?:train --resume|eval|play) (?![^`]*--trust-code)[^`]*)`", rf"`\1{flag_for_later()}`", message)


def _use_if_trusted(value: str) -> bool:
    trusted = is_code_trusted() or (_trusts.get() and value in os.environ.get(VARIABLE, "").splitlines())
    _used_trust.update([value] if trusted else ())
    return trusted


def check_import(kind: str, name: str) -> None:
    """Raise unless `name` (`package.module:NAME` or `file.py:NAME`) may be imported."""
    if _use_if_trusted(_identify(name)):
        return
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        place = str(Path(place).expanduser().absolute())
    else:
        spec = PathFinder.find_spec(place.partition(".")[0])  # of the top package: finding one inside would import it
        place += f" ({spec.origin or 'a package'})" if spec else " (not installed)"
    require_trust(f"{kind} {name!r} would import {attribute} from {place if place.isprintable() else repr(place)}")


def check_endpoint(url: str, key_variable: str) -> None:
    """Raise unless this endpoint may be called with the key in this environment variable."""
    if (url, key_variable) in DEFAULT_ENDPOINTS:
        return
    url = url or "of Tinker"
    danger = f"a file names the endpoint {url if url.isprintable() else repr(url)} with the key in ${key_variable}"
    check_typed(url.rstrip("/"), danger, "--engine.url, --embedding-url")


def check_typed(value: str, danger: str, flags: str) -> None:
    """Raise unless the user typed this value, with one of these flags. `danger`: the start of the error message."""
    if not _use_if_trusted(value):
        remedy = f"name it on the command line ({flags}), or pass {FLAG} if you trust it"
        raise UntrustedCode(f"{danger}; {remedy} (in Python: tacit.trust_code()).")


def require_trust(danger: str) -> None:
    """Raise unless all code is trusted. `danger`: `WHAT would import NAME from PLACE`."""
    if not is_code_trusted():
        raise UntrustedCode(f"{danger}; pass {FLAG} if you trust it (in Python: tacit.trust_code()).")


def _identify(name: str) -> str:
    """The name with an absolute file path, so that all spellings of a file compare equal."""
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{attribute}" if place.endswith(".py") else name
