"""Whether episodes can be played while others are learned from."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.core.errors import TacitError
from tacit.core.protocols import HeldSampler, Policy
from tacit.training.practice import Practice
from tacit.training.settings import TrainSettings


def check_overlap(settings: TrainSettings, policy: Policy, practices: Sequence[Practice]) -> None:
    """Refuse it where the sampler would move with the weights, or what is learned changes what is read meanwhile."""
    if not settings.overlap:
        return
    for practice in practices:
        if names := [companion.name for companion in practice.method.companions]:
            raise TacitError(
                f"overlap = {settings.overlap}: {practice.method.name!r} learns {', '.join(names)} beside the policy, which "
                "its episodes read; they cannot be played meanwhile. Use --overlap 0."
            )
    if not isinstance(policy, HeldSampler):
        raise TacitError(
            f"overlap = {settings.overlap} needs an engine whose samplers have weights of their own: --engine sharded with "
            "--engine.servers 1, or --overlap 0."
        )
    with policy.held():  # says what is missing
        pass
