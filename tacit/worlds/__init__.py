"""The registry of worlds. A world is imported on first use."""

from __future__ import annotations

import inspect

from tacit.core.errors import unknown
from tacit.core.registry import Registry
from tacit.core.trust import check_typed
from tacit.core.world import Environment

_NAMES = (
    "countdown",
    "alfworld",
    "cooking",
    "textcraft",
    "sokoban",
    "webshop",
    "searchqa",
    "minihack",
    "scienceworld",
    "errands",
)
WORLDS = {name: f"tacit.worlds.{name}:ENVIRONMENT" for name in (*_NAMES, "code")}
REGISTRY = Registry(
    "world",
    "tacit.worlds",
    WORLDS,
    lambda value: isinstance(value, Environment),
    "a tacit.core.world.Environment",
    r"tacit\.modules\.work:WORK|tacit\.modules\.carrying:DRAFT_[0-9a-f]{16}",
)


def get_environment(name: str) -> Environment:
    """The world `NAME`, or your own as `package.module:OBJECT` or `path/to/file.py:OBJECT`. `NAME+OPTION=VALUE` sets options of
    the world."""
    base, *settings = name.split("+")
    if not settings or not all("=" in option for option in settings):
        return REGISTRY.get(name)
    world = REGISTRY.get(base)
    options = dict(option.partition("=")[::2] for option in settings)
    accepted = tuple(inspect.signature(world.configure).parameters) if world.configure else ()
    for option in options:
        if option not in accepted:
            raise unknown(f"option of world {base!r}", option, accepted)
    if options.get("sandbox") == "none":
        danger = f"a file names world {name!r}, which would run commands without isolation"
        check_typed("sandbox=none", danger, "--sandbox none")
    return world.configure(**options)
