"""Every setting of a run as a flag, by where it stands in a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

from tacit.assembly.flags import Option, options_of
from tacit.assembly.recipe import DEFAULT_ENGINE, DEFAULT_METHOD, DEFAULT_MODEL
from tacit.core.errors import TacitError
from tacit.engines import get_engine
from tacit.engines.models.tiny import TINY_SIZES, TinySettings
from tacit.methods import REGISTRY, get_method
from tacit.training.settings import TrainSettings

TOP_OPTIONS = (
    Option("world", ("world",), str, dataclasses.MISSING, "what to play: a name of `tacit list worlds`, or your own as "
           "package.module:OBJECT or path/to/file.py:OBJECT; several with their shares: alfworld=0.75,countdown=0.25"),
    Option("method", ("method", "name"), str, DEFAULT_METHOD, "how to learn: a name of `tacit list methods`, several as a+b, "
           "or your own as package.module:Class or path/to/file.py:Class"),
    Option("model", ("model",), str, DEFAULT_MODEL, "who plays: tiny-base (pretrained, packaged), tiny (made from "
           "scratch), the directory of a checkpoint, or a hub id (owner/name)"),
    Option("engine", ("engine", "name"), str, DEFAULT_ENGINE, "where the model is held, trained and sampled: a name of "
           "`tacit list engines`, or your own as package.module:OBJECT or path/to/file.py:OBJECT"),
)  # fmt: skip
RUN_OPTION = Option("out", ("out",), Path, "runs/WORLD-METHOD-SEED", "run directory, which must not hold a run yet")


def method_options(name: str) -> list[Option]:
    """The flags of a method: its own fields without a prefix, its schedule without one either."""
    cls = get_method(name)
    if not dataclasses.is_dataclass(cls):
        raise TacitError(f"method {name!r} has no settings to read: its class must be a dataclass.")
    own = options_of(cls, ("method",))
    schedule = [o for o in own if o.place[:2] == ("method", "schedule")]
    bare = [replace(o, name=o.place[-1].replace("_", "-"), place=o.place[1:]) for o in schedule]
    return [o for o in own if o not in schedule] + bare


def methods_with(flag: str) -> list[str]:
    """The registered methods that have a flag, for saying where it belongs."""
    return [name for name in REGISTRY.own if any(o.flag == flag for o in method_options(name))]


def train_options() -> list[Option]:
    """Fields of TrainSettings that have no section of their own."""
    return [option for option in options_of(TrainSettings) if len(option.place) == 1]


def section_options(model: str = DEFAULT_MODEL, engine: str = DEFAULT_ENGINE) -> dict[str, list[Option]]:
    """Flags with a prefix, by section; the sizes shown are those of the model where it is a tiny one."""
    nested = [option for option in options_of(TrainSettings) if len(option.place) > 1]
    return {
        "sft": [o for o in nested if o.place[0] == "sft"],
        "evaluation": [o for o in nested if o.place[0] == "evaluation"],
        "engine": options_of(get_engine(engine).settings, ("engine",), "engine."),
        "tiny": options_of(TINY_SIZES.get(model, TinySettings), ("tiny",), "tiny."),
    }
