"""BiPACE (Wang et al., 2026): compare steps by what they mean, and actions with their peers.

    C = Cluster_ε({φ(s)}, 1 − u·v)                        (3)    φ: the actor's own hidden state at the prompt, normalised
    BiGPO        Âₛ = (Rₜ − mean_C R) / (std_C R + δ)      (2)
    BiPACE       Âₛ = mean_{C=} R − mean_C R = Q̂ − V̂       (5–7)  C=: the steps of C that took the same action
                 Âₛ = Rₜ − mean_{C≠} R                     (4)    the difference form
    A = A_episode + w · Âₛ                                 (8)

What differs from GRPO: the second term of (8), and a smaller learning rate. With one axis per observation and ε = 0, BiGPO is
GiGPO. The prefill that samples a completion has φ already, so it costs next to nothing (docs/methods/bipace.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from tacit.companions.radius import AdaptiveRadius
from tacit.core.method import CreditTerm, Method, Schedule
from tacit.core.world import Environment
from tacit.credit.embedders import ActorHidden, Embedder, HashNgram, Identity, Pooling, SentenceEncoder
from tacit.credit.pace import ActionKey, ActionPeers, Form
from tacit.credit.partitions import Clusters, Fixed, Partition
from tacit.credit.step_relative import StepRelative
from tacit.methods.grpo import GRPO

PUBLISHED_LAYER = -8
PUBLISHED_EPSILON = {"actor": 0.10, "ngram": 0.25, "identity": 0.0, "sentence": 0.10}
"""by embedder; the paper has no sentence encoder, so its radius is ours"""


@dataclass(frozen=True)
class BiGPO(GRPO):
    """GRPO with step-level credit among steps whose hidden states are near: BiPACE's state side alone."""

    name: ClassVar[str] = "bigpo"

    gamma: float = 0.95
    """discount per turn of the step returns"""
    step_weight: float = 1.0
    """w of the step-level credit; 0 is GRPO"""
    step_std: Literal["population", "sample", "none"] = "population"
    """divide step-level credit by the deviation of its cluster: population, sample, or none"""
    embedder: Literal["actor", "ngram", "identity", "sentence"] = "actor"
    """what steps are compared by: the actor's hidden state, character n-grams, the exact observation, a sentence encoder"""
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"
    """the sentence encoder, where steps are compared by one: a directory or a hub id"""
    layer: int | None = None
    """layer of the hidden state, from the end if negative; none is what `tacit calibrate` found for this model, else -8"""
    pooling: Pooling | None = None
    """which state of the prompt: last (free: the sampler has it), mean or attention; none is the calibrated one, else last"""
    epsilon: float | None = None
    """cosine radius of a cluster, from 0 to 2; none is the calibrated one, else the published 0.10 (ngram: 0.25)"""
    adaptive: bool = False
    """find epsilon on the first iteration: a median cluster of 4 to 8 steps"""
    schedule: Schedule = field(default_factory=lambda: Schedule(lr=5e-7))

    def build(self, world: Environment) -> Method:
        adaptive = AdaptiveRadius(self.features()) if self.adaptive else None
        radius = adaptive or Fixed(PUBLISHED_EPSILON[self.embedder] if self.epsilon is None else self.epsilon)
        method = super().build(world)
        return replace(
            method,
            credits=(*method.credits, self.step_credit(Clusters(self.features(), radius))),
            companions=(*method.companions, *([adaptive] if adaptive else [])),
            hidden_layer=self.hidden_layer() if self.embedder == "actor" and self.pooling in (None, "last") else None,
        )

    def features(self) -> Embedder:
        choices: dict[str, Embedder] = {
            "actor": ActorHidden(self.hidden_layer(), self.pooling or "last"),
            "ngram": HashNgram(),
            "identity": Identity(),
            "sentence": SentenceEncoder(self.encoder),
        }
        return choices[self.embedder]

    def hidden_layer(self) -> int:
        return PUBLISHED_LAYER if self.layer is None else self.layer

    def step_credit(self, clusters: Partition) -> CreditTerm:
        std = None if self.step_std == "none" else self.step_std
        return StepRelative(clusters, self.step_weight, self.gamma, std)


@dataclass(frozen=True)
class BiPACE(BiGPO):
    """GRPO with Q̂ − V̂ among steps whose hidden states are near: what an action was worth where it was taken."""

    name: ClassVar[str] = "bipace"

    step_std: Literal["population", "sample", "none"] = "none"
    """divide step-level credit by the deviation of its cluster: none (as in Eqs. 4-7), population or sample"""
    estimator: Form = "q"
    """q: mean return of the same action minus that of the cluster; difference: return minus that of other actions"""
    action_key: ActionKey = "tag"
    """what makes two actions the same: the parsed action (tag), or the first tokens of the completion (tokens)"""
    key_tokens: int = 8
    """how many first tokens; also the key of a completion that does not parse"""

    def step_credit(self, clusters: Partition) -> CreditTerm:
        std = None if self.step_std == "none" else self.step_std
        return ActionPeers(clusters, self.estimator, self.action_key, self.key_tokens, self.step_weight, self.gamma, std)
