"""The package `bm25s`, imported without JAX.

Where JAX is installed, bm25s tries it while it is imported, for a quicker top-k that nobody here asks for: it takes three
quarters of a GPU's memory, and processes forked afterwards die.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tacit.core.errors import TacitError


def load_bm25s() -> Any:
    """The module. A JAX that was imported before is left alone."""
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # importing it now is an ImportError
    try:
        return importlib.import_module("bm25s")
    except ImportError as error:
        raise TacitError("the search needs the package bm25s, which is not installed: `pip install bm25s`.") from error
    finally:
        if hidden:
            del sys.modules["jax"]
