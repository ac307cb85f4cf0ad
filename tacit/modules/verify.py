"""Verify a module: play its panel again and compare scores; check that it can be played here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tacit.config.checks import open_world
from tacit.config.measuring import PanelEvaluation
from tacit.config.recipe import Overrides
from tacit.core.errors import TacitError
from tacit.evaluation.statistics import wilson
from tacit.modules.module import Module, make_context
from tacit.modules.router import open_modules

BATCH = 256


@dataclass(frozen=True)
class Verdict:
    panel: str
    episodes: int
    claimed: int  # successes in its manifest
    measured: int  # successes here

    @property
    def holds(self) -> bool:
        """Whether the 95% intervals overlap. Counts are equal on the same hardware; other arithmetic samples other tokens."""
        (low, high), (claimed_low, claimed_high) = (wilson(n, self.episodes) for n in (self.measured, self.claimed))
        return low <= claimed_high and claimed_low <= high

    def __str__(self) -> str:
        low, high = wilson(self.measured, self.episodes)
        here = f"{self.measured} of {self.episodes} won here on {self.panel} [{low:.1%}, {high:.1%}]"
        if self.measured == self.claimed:
            return f"{here}, as its manifest says"
        return f"{here}; its manifest says {self.claimed}: {'within chance' if self.holds else 'the score does not hold'}"


def verify_score(module: Module, base: str | None = None, said: Overrides | None = None) -> Verdict:
    stage = module.run["checkpoint"].rpartition("-")[0]
    score = module.scores.get(stage)
    if score is None:
        raise TacitError(f"module {module.skill!r} has no score of its own weights ({module.run['checkpoint']}) to verify.")
    target = open_modules(module.path, said or {}, base, None)
    with tempfile.TemporaryDirectory(prefix="tacit-verify-") as place:
        found = PanelEvaluation(target, out=Path(place), fresh=True).play(BATCH).score
    if (found.panel_hash, found.episodes) != (score["panel_hash"], score["episodes"]):
        raise TacitError(
            f"module {module.skill!r} was measured on panel {score['panel']} (hash {score['panel_hash']}, {score['episodes']} "
            f"episodes), but here the panel is {found.panel} (hash {found.panel_hash}, {found.episodes} episodes); they cannot "
            "be compared."
        )
    return Verdict(found.panel, found.episodes, score["successes"], found.successes)


def find_problems(module: Module, base: str | None = None) -> list[str]:
    """All reasons why a module cannot be played here. `base` overrides the base's path."""
    found = module.find_damage()
    try:
        world = open_world(module.world)
    except TacitError as error:
        return [*found, str(error)]
    checks: tuple[Callable[[], object], ...] = (
        lambda: module.check_tracker(world),
        lambda: make_context(module.context, world),
        lambda: module.check_wording(world),
        lambda: module.check_base(module.base.with_model(base), world),
    )
    for check in checks:
        try:
            check()
        except TacitError as error:
            found.append(str(error))
    return found
