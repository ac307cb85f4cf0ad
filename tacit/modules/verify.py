"""Whether a module is as good as it says: its panel played again, as it was measured when it was made."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tacit.config.checks import open_world
from tacit.config.measuring import Sitting
from tacit.config.recipe import Said
from tacit.core.errors import TacitError
from tacit.evaluation.statistics import wilson
from tacit.modules.module import Module, make_context
from tacit.modules.router import open_modules

BATCH = 256


@dataclass(frozen=True)
class Verdict:
    panel: str
    episodes: int
    said: int
    """successes it claims"""
    found: int
    """successes here"""

    @property
    def holds(self) -> bool:
        """Their 95% intervals meet. On the same kind of machine the counts are equal; other arithmetic draws other tokens."""
        (low, high), (claimed_low, claimed_high) = wilson(self.found, self.episodes), wilson(self.said, self.episodes)
        return low <= claimed_high and claimed_low <= high

    def __str__(self) -> str:
        low, high = wilson(self.found, self.episodes)
        here = f"{self.found} of {self.episodes} won here on {self.panel} [{low:.1%}, {high:.1%}]"
        if self.found == self.said:
            return f"{here}, as it says"
        return f"{here}, and it says {self.said}: {'within chance' if self.holds else 'its score does not hold'}"


def remeasure(module: Module, base: str | None = None, said: Said | None = None) -> Verdict:
    stage = module.run["checkpoint"].rpartition("-")[0]
    score = module.scores.get(stage)
    if score is None:
        raise TacitError(f"module {module.skill!r} has no score of its own weights ({module.run['checkpoint']}) to verify.")
    target = open_modules(module.path, said or {}, base, None)
    with tempfile.TemporaryDirectory(prefix="tacit-verify-") as place:
        found = Sitting(target, out=Path(place), fresh=True).play(BATCH).score
    if (found.panel_hash, found.episodes) != (score["panel_hash"], score["episodes"]):
        raise TacitError(
            f"module {module.skill!r} was measured on panel {score['panel']} (hash {score['panel_hash']}, {score['episodes']} "
            f"episodes), and here that is {found.panel} with hash {found.panel_hash}, {found.episodes} episodes: they "
            "cannot be compared."
        )
    return Verdict(found.panel, found.episodes, score["successes"], found.successes)


# Whether a module can be played here, and everything that stands in the way.


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
