"""Whether episodes can be played while others are learned from."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.core.errors import TacitError
from tacit.core.method import Method
from tacit.core.protocols import HeldSampler, Policy
from tacit.training.settings import TrainSettings


def check_overlap(settings: TrainSettings, methods: Sequence[Method], can_hold: bool = True) -> None:
    """Refuse it, before anything is loaded, where a companion changes what is read meanwhile, or where the sampler would move
    with the weights (`can_hold` is False). A companion that only looks at finished episodes (for a reward, a credit, a radius)
    does so as ever: before the update, with the policy that is about to be updated."""
    if not settings.overlap:
        return
    for method in methods:
        if names := [c.name for c in method.companions if getattr(c, "read_in_play", True)]:
            raise TacitError(
                f"overlap = {settings.overlap}: episodes of {method.name!r} read what {' and '.join(names)} learned "
                "from those before them; they cannot be played while it learns. Use --overlap 0. (A companion of your own that "
                "no episode reads says read_in_play = False.)"
            )
    if not can_hold:
        raise TacitError(
            f"overlap = {settings.overlap} needs an engine whose samplers have weights of their own: --engine sharded with "
            "--engine.servers 1, or --overlap 0."
        )


def check_held(settings: TrainSettings, policy: Policy) -> None:
    """The same of a policy that is there."""
    if not settings.overlap:
        return
    check_overlap(settings, (), isinstance(policy, HeldSampler))
    assert isinstance(policy, HeldSampler)
    with policy.held():  # says what is missing
        pass
