"""Whether a module can be played here, and everything that stands in the way."""

from __future__ import annotations

from collections.abc import Callable

from tacit.assembly.checks import open_world
from tacit.core.errors import TacitError
from tacit.modules.module import Module
from tacit.modules.prompting import make_context


def problems(module: Module, base: str | None = None) -> list[str]:
    """Everything that is wrong with a module here, not only the first. `base` is where its base lies, if not where it was in
    training."""
    found = module.damage()
    try:
        world = open_world(module.world)
    except TacitError as error:
        return [*found, str(error)]
    checks: tuple[Callable[[], object], ...] = (
        lambda: module.check_tracker(world),
        lambda: make_context(module.context, world),
        lambda: module.check_wording(world),
        lambda: module.check_base(module.base.elsewhere(base), world),
    )
    for check in checks:
        try:
            check()
        except TacitError as error:
            found.append(str(error))
    return found
