"""Staying near a reference policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.core.batch import Per
from tacit.core.credit import Rewards
from tacit.core.engine import REFERENCE, SCORING
from tacit.core.moment import Moment
from tacit.core.protocols import Policy, TokenView
from tacit.core.types import Group, flat_steps
from tacit.losses.aggregate import Over, mean_over

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ReferenceLogprobs:
    """log π_ref of every sampled token, at the temperature the policy is measured at."""

    temperature: float = 1.0
    name: ClassVar[str] = "reference"
    per: ClassVar[Per] = "token"
    needs: ClassVar[frozenset[str]] = frozenset({SCORING, REFERENCE})

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, moment: Moment | None = None
    ) -> list[np.ndarray]:
        steps = flat_steps(groups)
        return policy.reference().logprobs(
            [s.prompt_tokens for s in steps], [s.completion.tokens for s in steps], self.temperature
        )


@dataclass(frozen=True)
class ReferenceKL:
    """β E[exp(d) − d − 1] with d = log π_ref − log π: the k3 estimator of KL(π ‖ π_ref), never negative.

    Beside a loss that sums over an action's tokens, so must this (`over="actions"`): as a mean over tokens its β would shrink
    by the action's length."""

    beta: float = 0.01
    over: Over = "tokens"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        # exp(d) explodes where the reference all but rules a token out; ±10 is the reference implementations' bound.
        d_T = (view.tokens["reference"] - view.logprobs_T).clamp(-10.0, 10.0)
        kl_T = d_T.expm1() - d_T
        return self.beta * mean_over(kl_T, view, self.over), {"reference_kl": kl_T.detach().sum()}
