"""Error types, and the parts of their messages: what is wrong, which value, what to do."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit import DISTRIBUTION


class TacitError(Exception):
    """A mistake in settings, files or data. The command line prints it without a traceback."""


def unknown(kind: str, name: str, known: Iterable[str]) -> TacitError:
    """`unknown world 'countdwon'. Did you mean 'countdown'? Known: …`; with the kind `split of world 'countdown'`:
    `unknown split 'tset' of world 'countdown'. …`"""
    names = sorted(known)
    plain = {known_name.lower(): known_name for known_name in names}
    nearest = difflib.get_close_matches(name.lower(), plain, n=1, cutoff=0.5)
    hint = f" Did you mean {plain[nearest[0]]!r}?" if nearest else ""
    noun, of, whole = kind.partition(" of ")
    return TacitError(f"unknown {noun} {name!r}{of}{whole}.{hint} Known: {', '.join(names) or 'none'}.")


def check_split_and_count(world: str, splits: Sequence[str], split: str, count: int) -> None:
    """Refuse an unknown split or a negative number of tasks."""
    if split not in splits:
        raise unknown(f"split of world {world!r}", split, splits)
    if count < 0:
        raise TacitError(f"cannot make {count} tasks; ask for zero or more.")


def install_command(extra: str) -> str:
    """The command that installs an extra: `pip install 'NAME[EXTRA]'`."""
    return f"`pip install '{DISTRIBUTION}[{extra}]'`"


def describe_error(error: BaseException) -> str:
    """`KeyError: 'lamp' (my_world.py, line 12)`: the error, and the last line of the user's own code in its traceback."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    paths = sysconfig.get_paths()
    libraries = [Path(__file__).parents[1], *(Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))]
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    python = [(path, line) for path, line in frames if path.suffix == ".py"]
    user_frames = [(path.name, line) for path, line in python if not any(path.is_relative_to(library) for library in libraries)]
    return f"{what} ({user_frames[-1][0]}, line {user_frames[-1][1]})" if user_frames else what


def first_line(error: BaseException) -> str:
    """The first line of the error's message, or its class name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class OutOfGPUMemory(TacitError):
    """The GPU is out of memory. The model or batch itself is valid, and may fit later or on another device."""


class NonFiniteLoss(TacitError):
    """The loss or its gradient is not finite; raised before any weight changes. `batch`: the batch it happened on."""

    batch: Any = None


class EngineLost(TacitError):
    """The engine's processes died, and with them the weights in memory. A run can resume from its last checkpoint, with other
    engine `settings` if the old ones exceeded the memory."""

    def __init__(self, message: str, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.settings = settings or {}
