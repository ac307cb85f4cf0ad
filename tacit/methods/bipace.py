"""BiPACE (Wang et al., 2026): step-level credit among steps with similar hidden states, and action-level credit within them.

    A_ep = (R(τ) − mean R) / (std R + δ)                  (1)    over the trajectories of one task: GRPO
    C = Cluster_ε({φ(s)}, 1 − u·v)                        (3)    φ: the actor's own hidden state at the prompt, normalized
    BiGPO        Âₛ = (Rₜ − mean_C R) / (std_C R + δ)      (2)    in the cluster C of the step, Rₜ = rₜ + γ Rₜ₊₁
    BiPACE       Âₛ = Q̂ − V̂                               (5)
                 Q̂ = mean_{C=} R                          (6)    C=: the steps of C that took the same action
                 V̂ = mean_C R                             (7)
                 Âₛ = Rₜ − mean_{C≠} R                     (4)    C≠: those that took another; the difference form
    A = A_ep + w · Âₛ                                      (8)

A step alone in its cluster gets Âₛ = 0. If C= has only the step itself (5–7), or C≠ is empty (4), Âₛ is the leave-one-out
advantage Rₜ − mean_{C∖t} R.

What differs from GRPO: the second term of (8), and a smaller learning rate. With the identity embedder and ε = 0, BiGPO is
GiGPO. φ is almost free: the prefill that samples a completion computes it (docs/methods/bipace.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

from tacit.core.bounds import AtLeastOne, Bound, NotNegative, Share
from tacit.core.errors import TacitError
from tacit.core.method import Base, CreditTerm, Part, Resources, Schedule, adds
from tacit.core.types import HiddenState
from tacit.core.world import Environment
from tacit.credit.partitions import (
    PUBLISHED_EPSILON,
    PUBLISHED_LAYER,
    ActorHidden,
    AdaptiveRadius,
    Clusters,
    Embedder,
    Geometry,
    HashNgram,
    Identity,
    Key,
    Pooling,
    SentenceEncoder,
    choose_geometry,
)
from tacit.credit.step_relative import ActionKey, ActionPeers, Form, StepRelative
from tacit.methods.grpo import GRPO

COSINE = Bound(lambda v: 0 <= v <= 2, "must be between 0 and 2: it is a cosine distance")


@dataclass(frozen=True)
class BiGPO(GRPO):
    """GRPO with step-level credit among steps with similar hidden states: BiPACE without the action side."""

    name: ClassVar[str] = "bigpo"

    gamma: Share = 0.95
    """discount per turn of the step returns"""
    step_weight: NotNegative = 1.0
    """w of the step-level credit; 0 is GRPO"""
    step_std: Literal["population", "sample", "none"] = "population"
    """divide step-level credit by the standard deviation of its cluster: population, sample, or none"""
    embedder: Literal["actor", "ngram", "identity", "sentence"] = "actor"
    """features that steps are clustered by: actor hidden state, character n-grams, exact observation, or sentence encoder"""
    text_key: Key = "observation"
    """text that ngram and identity compare: the observation, the state (state block and observation), or the whole prompt"""
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"
    """sentence encoder for embedder = sentence: a directory or a hub id"""
    layer: int | None = None
    """layer of the hidden state, counted from the end if negative; default: the one `tacit calibrate` found, else -8"""
    pooling: Pooling | None = None
    """pooling over prompt tokens: last, mean or attention; default: the calibrated one, else last"""
    epsilon: Annotated[float | None, COSINE] = None
    """cosine radius of a cluster, from 0 to 2; default: the calibrated one, else the published 0.10 (ngram: 0.25)"""
    adaptive: bool = False
    """search for epsilon on the first iteration, so that the median cluster has 4 to 8 steps"""
    schedule: Schedule = field(default_factory=lambda: Schedule(lr=5e-7))

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.adaptive and self.epsilon is not None:
            raise TacitError(
                f"epsilon = {self.epsilon} and adaptive = true exclude each other: adaptive searches for epsilon. Remove one."
            )
        phi = self.build_embedder(resources)
        # The prefill that samples a completion also computes its hidden state.
        sampled = [HiddenState(phi.layer, phi.pooling)] if isinstance(phi, ActorHidden) else []
        companions = [AdaptiveRadius(phi)] if self.adaptive else []
        epsilon = PUBLISHED_EPSILON[self.embedder] if self.epsilon is None else self.epsilon
        clusters = Clusters(phi, companions[0] if companions else epsilon)
        return (
            adds("credits", "step credit", self.step_credit(clusters)),  # Eqs. 3 and 8
            adds("companions", "radius", *companions),
            adds("hidden_state", "hidden state", *sampled),
        )

    def fit_to_model(self, base: Base, explicit: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        settings, notes = super().fit_to_model(base, explicit)
        geometry = Geometry(self.layer, self.pooling, self.epsilon)
        fitted, more = choose_geometry(geometry, self.embedder, base, self.adaptive)
        return replace(settings, layer=fitted.layer, pooling=fitted.pooling, epsilon=fitted.epsilon), (*notes, *more)

    def build_embedder(self, resources: Resources) -> Embedder:
        """φ: features of a step."""
        if self.embedder == "actor":
            layer = PUBLISHED_LAYER if self.layer is None else self.layer
            resources.check_layer(layer)
            return ActorHidden(layer, self.pooling or "last")
        if self.embedder == "sentence":
            return SentenceEncoder(resources.sentences(self.encoder))
        return HashNgram(key=self.text_key) if self.embedder == "ngram" else Identity(self.text_key)

    def step_credit(self, clusters: Clusters) -> CreditTerm:
        """w · Âₛ (Eq. 2)"""
        return StepRelative(clusters, self.step_weight, self.gamma, None if self.step_std == "none" else self.step_std)


@dataclass(frozen=True)
class BiPACE(BiGPO):
    """GRPO with Q̂ − V̂ of each action, estimated among steps with similar hidden states."""

    name: ClassVar[str] = "bipace"

    step_std: Literal["population", "sample", "none"] = "none"
    """divide step-level credit by the standard deviation of its cluster: none (as in Eqs. 4-7), population or sample"""
    estimator: Form = "q"
    """q: mean return of the same action minus mean of the cluster; difference: return minus mean return of other actions"""
    action_key: ActionKey = "tag"
    """two actions are the same if their parsed actions (tag) or their first completion tokens (tokens) are equal"""
    key_tokens: AtLeastOne = 8
    """number of first tokens; also the key of a completion that does not parse"""

    def step_credit(self, clusters: Clusters) -> CreditTerm:
        """w · Âₛ (Eqs. 4–7)"""
        std = None if self.step_std == "none" else self.step_std
        return ActionPeers(
            clusters, self.step_weight, self.gamma, std, form=self.estimator, key=self.action_key, key_tokens=self.key_tokens
        )
