"""Train language-model agents with reinforcement learning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.api import Evaluation, OpenRun, evaluate, open_run, train
    from tacit.core.errors import TacitError
    from tacit.core.trust import trust_code
    from tacit.training.reporting import Event

__version__ = "0.1.0"
DISTRIBUTION = "tacit-agents"
"""name on PyPI, where `tacit` is another project"""

__all__ = ["DISTRIBUTION", "Evaluation", "Event", "OpenRun", "TacitError", "evaluate", "open_run", "train", "trust_code"]

_FROM_PYTHON = {
    "train": "tacit.api",
    "evaluate": "tacit.api",
    "Evaluation": "tacit.api",
    "open_run": "tacit.api",
    "OpenRun": "tacit.api",
    "Event": "tacit.training.reporting",
    "TacitError": "tacit.core.errors",
    "trust_code": "tacit.core.trust",
}


def __getattr__(name: str) -> Any:
    """Import the names of _FROM_PYTHON on first use; `import tacit` alone imports nothing else."""
    if name not in _FROM_PYTHON:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return getattr(importlib.import_module(_FROM_PYTHON[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM_PYTHON})
