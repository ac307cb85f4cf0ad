"""Methods by name. Each file is one paper; the class holds its settings, `build(world)` its pieces."""

from __future__ import annotations

import importlib
from typing import Any

from tacit.core.finding import find

METHODS = {
    "grpo": ("tacit.methods.grpo", "GRPO"),
    "rloo": ("tacit.methods.rloo", "RLOO"),
    "reinforce_pp": ("tacit.methods.reinforce_pp", "ReinforcePP"),
    "dapo": ("tacit.methods.dapo", "DAPO"),
    "gspo": ("tacit.methods.gspo", "GSPO"),
    "cispo": ("tacit.methods.cispo", "CISPO"),
    "ppo": ("tacit.methods.ppo", "PPO"),
    "round_length": ("tacit.methods.round_length", "RoundLength"),
    "reuserl": ("tacit.methods.reuserl", "ReuseRL"),
    "gigpo": ("tacit.methods.gigpo", "GiGPO"),
    "hgpo": ("tacit.methods.hgpo", "HGPO"),
    "bigpo": ("tacit.methods.bipace", "BiGPO"),
    "bipace": ("tacit.methods.bipace", "BiPACE"),
    "constant_context": ("tacit.methods.constant_context", "ConstantContext"),
}


def get_method(name: str) -> type[Any]:
    """The settings class of a method by its name, or your own as `package.module:Class` or `path/to/file.py:Class`."""
    if name in METHODS:
        module, attribute = METHODS[name]
        return getattr(importlib.import_module(module), attribute)
    return find("method", name, METHODS, _is_settings, "a dataclass with `build(world) -> Method` (see tacit/methods/grpo.py)")


def _is_settings(found: Any) -> bool:
    return isinstance(found, type) and callable(getattr(found, "build", None))
