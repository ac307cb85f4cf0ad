"""Features of steps (embedders), and partitions of a group's steps into clusters whose steps are compared with each other.

ActorHidden      hidden state of the policy at the prompt; changes as the policy trains
HashNgram        character n-gram counts; the control that does not depend on the policy
Identity         one axis per distinct text; with radius 0 the clusters are GiGPO's
SentenceEncoder  a frozen text encoder

by_key           equal keys (GiGPO)
by_similarity    similar texts (GiGPO's option for worlds whose observations do not repeat exactly)
by_history       equal last k observations (HGPO)
by_cosine        nearby features (BiPACE's Algorithm 1, with any embedder)

Clustering normalizes features, so only their directions matter. A partition of N steps is an integer array cluster_N: labels
from 0 in order of first appearance, −1 for no cluster. Steps are in rollout order: all steps of the first trajectory, then of
the second, and so on."""

from __future__ import annotations

import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.method import Base, Companion, Encode, MethodPiece
from tacit.core.protocols import HIDDEN_STATES, Encoder
from tacit.core.types import Group, IterationInfo, Step

Key = Literal["observation", "state", "prompt"]
"""The text that must be equal for two steps to count as the same state.

observation   GiGPO and HGPO
state         state block and observation, as in the prompt: equal observations before and after finding the knife are two
              states. With a wording that numbers turns, every turn is distinct.
prompt        the whole prompt, with task and history
"""


def key_texts(steps: Sequence[Step], key: Key = "observation") -> list[str]:
    if key == "observation":
        return [step.observation.text for step in steps]
    return [step.prompt.now if key == "state" else step.prompt.text for step in steps]


Pooling = Literal["last", "mean", "attention"]
"""over prompt tokens: the last token, the mean, or the mean weighted by the last token's attention in that layer"""
Features = np.ndarray | Sequence[np.ndarray]  # [N, D], or N rows of D


class Embedder(MethodPiece, ABC):
    @abstractmethod
    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> Sequence[Features]:
        """Features [N, D] of each group's N steps."""


@dataclass(frozen=True)
class ActorHidden(Embedder):
    """φ(s): hidden state of one layer at the prompt.

    The sampler returns it from the prefill if `Method.hidden_state` requests it. Missing states need a forward pass over their
    prompts.
    """

    layer: int = -8
    pooling: Pooling = "last"
    needs: ClassVar[frozenset[str]] = frozenset({HIDDEN_STATES})

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[list[np.ndarray]]:
        features = [[step.completion.hidden for step in group.steps] for group in groups]
        missing = [(g, n) for g, rows in enumerate(features) for n, row in enumerate(rows) if row is None]
        if missing:
            if policy is None:
                raise TacitError(
                    f"{len(missing)} steps have no hidden states, and there is no policy to compute them. Roll out with "
                    f"hidden_state = {(self.layer, self.pooling)}, or use a text embedder (ngram, identity)."
                )
            prompts = [groups[g].steps[n].prompt_tokens for g, n in missing]
            for (g, n), state_D in zip(missing, policy.hidden_states(prompts, self.layer, self.pooling), strict=True):
                features[g][n] = state_D
        return [[row for row in rows if row is not None] for rows in features]


@dataclass(frozen=True)
class HashNgram(Embedder):
    """φ(s)ⱼ = number of character n-grams of the observation that hash to bucket j (crc32, the same on every machine)."""

    n: int = 3
    buckets: int = 1024
    key: Key = "observation"

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [self.texts(key_texts(group.steps, self.key)) for group in groups]

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """[N, buckets]; each distinct text is counted only once."""
        counted = {text: self._count(text) for text in dict.fromkeys(texts)}
        return np.array([counted[text] for text in texts], np.float32).reshape(len(texts), self.buckets)

    def _count(self, text: str) -> np.ndarray:
        # Markers at both ends distinguish beginnings and endings, and make features of empty texts non-zero.
        data = ("\x02" * (self.n - 1) + text + "\x03" * max(1, self.n - 1)).encode()
        grams = [zlib.crc32(data[i : i + self.n]) % self.buckets for i in range(len(data) - self.n + 1)]
        return np.bincount(grams, minlength=self.buckets)


@dataclass(frozen=True)
class Identity(Embedder):
    """φ(s) = e_h, one axis per distinct observation (or state, or prompt) of the group."""

    key: Key = "observation"

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        features = []
        for group in groups:
            axis: dict[str, int] = {}
            axes_N = [axis.setdefault(text, len(axis)) for text in key_texts(group.steps, self.key)]
            features.append(np.eye(len(axis), dtype=np.float32)[axes_N])
        return features


@dataclass(frozen=True)
class SentenceEncoder(Embedder):
    """φ(s) = a frozen text encoder's embedding of the observation."""

    encode: Encode | None = None

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        if self.encode is None:
            raise TacitError("embedder = sentence needs an encoder, but the method was built without one.")
        texts = list(dict.fromkeys(step.observation.text for group in groups for step in group.steps))
        encoded = dict(zip(texts, self.encode(texts), strict=True)) if texts else {}
        return [np.array([encoded[step.observation.text] for step in group.steps]) for group in groups]


# Partitions.

ROUNDING = 1e-6  # error of a single-precision cosine; equal features must be within radius 0


def by_key(keys: Sequence[Hashable]) -> np.ndarray:
    label: dict[Hashable, int] = {}
    return np.array([label.setdefault(key, len(label)) for key in keys], dtype=np.int64)


def by_similarity(texts: Sequence[str], threshold: float = 0.95) -> np.ndarray:
    """Each text joins the first cluster whose *first* member has a difflib ratio of at least `threshold` to it."""
    label: dict[str, int] = {}
    first: list[str] = []
    matcher = SequenceMatcher(autojunk=True)
    for text in texts:
        if text in label:
            continue
        matcher.set_seq2(text)  # difflib caches its analysis of the second sequence
        for k, other in enumerate(first):
            matcher.set_seq1(other)
            # The quick ratios are upper bounds.
            if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= threshold and matcher.ratio() >= threshold:
                label[text] = k
                break
        else:
            label[text] = len(first)
            first.append(text)
    return np.array([label[text] for text in texts], dtype=np.int64)


def by_history(keys: Sequence[Hashable], trajectory_N: np.ndarray, k: int) -> np.ndarray:
    """Steps with equal last k observations, including the current one. −1 before the k-th observation."""
    if k < 1:
        raise TacitError(f"a history of k = {k} observations cannot be compared; k must be at least 1.")
    now_N = by_key(keys)
    begins_N = np.searchsorted(trajectory_N, trajectory_N)
    rows = np.flatnonzero(np.arange(len(now_N)) - begins_N + 1 >= k)
    cluster_N = np.full(len(now_N), -1, dtype=np.int64)
    cluster_N[rows] = by_key([now_N[i - k + 1 : i + 1].tobytes() for i in rows])
    return cluster_N


def by_cosine(features: np.ndarray | Sequence[np.ndarray], epsilon: float) -> np.ndarray:
    """Algorithm 1: one greedy pass in the given order over unit vectors x = f / ‖f‖.

        k ← argmaxⱼ xᵢ·cⱼ  (the first of equals)
        1 − xᵢ·c_k ≤ ε :  join k,  c_k ← normalize(c_k + (xᵢ − c_k) / |M_k|),  |M_k| including xᵢ
        otherwise      :  start a cluster with c = xᵢ

    Returns [N] labels. c_k is unchanged if x = c_k, or if x and c_k cancel out. To save normalizations, a cluster stores an
    unnormalized u parallel to c: joining is u ← u + f · ‖u‖ / (‖f‖ (|M_k| − 1)); the new ‖u‖ follows from the old one and the
    cosine.
    """
    check_radius(epsilon)
    if not len(features):
        return np.zeros(0, dtype=np.int64)
    rows = [np.asarray(feature, np.float32) for feature in features]
    pointing_ND, added_D = np.empty((len(rows), len(rows[0])), np.float32), np.empty_like(rows[0])
    inverse_N = np.empty(len(rows), np.float32)  # 1 / ‖u‖
    cluster: list[int] = []
    members: list[int] = []
    lengths: list[float] = []  # ‖u‖
    for f_D, length in zip(rows, _lengths(rows), strict=True):
        k, cosine = len(members), -np.inf
        if members:
            cosines_K = pointing_ND[:k].dot(f_D)
            cosines_K *= inverse_N[:k]
            k = int(cosines_K.argmax())
            cosine = cosines_K.item(k) / length
        if 1.0 - cosine <= epsilon + ROUNDING:
            before, u_D = members[k], pointing_ND[k]
            members[k] += 1
            grown = math.sqrt(max(0.0, before * before + 2 * before * cosine + 1))  # |M_k| · ‖c + (x − c) / |M_k|‖
            if cosine < 1.0 and grown > 5e-4 * members[k]:
                np.multiply(f_D, lengths[k] / (length * before), out=added_D)
                u_D += added_D
                lengths[k] *= grown / before
                inverse_N[k] = 1 / lengths[k]
        else:
            k = len(members)
            members.append(1)
            lengths.append(length)
            pointing_ND[k], inverse_N[k] = f_D, 1 / length
        cluster.append(k)
    return np.array(cluster, dtype=np.int64)


def check_radius(epsilon: float) -> None:
    if not 0.0 <= epsilon <= 2.0:
        raise TacitError(
            f"epsilon = {epsilon} is not a cosine distance: it must be between 0 (same direction) and 2 (opposite)."
        )


def _lengths(rows: Sequence[np.ndarray]) -> list[float]:
    squares = [float(row.dot(row)) for row in rows]
    wrong = [n for n, square in enumerate(squares) if not 0.0 < square < math.inf]
    if wrong:
        reason = "is all zeros and has no direction" if squares[wrong[0]] <= 0.0 else "holds NaN or infinite numbers"
        raise TacitError(
            f"the feature of step {wrong[0]} of a group {reason} ({len(wrong)} such steps), so steps cannot be clustered. "
            "Choose another layer or embedder; if the policy has diverged, resume from an earlier checkpoint."
        )
    return [math.sqrt(square) for square in squares]


class Partition(MethodPiece, ABC):
    @abstractmethod
    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[np.ndarray]:
        """cluster_N of each group, one label per step."""


@dataclass(frozen=True)
class SameKey(Partition):
    """Steps with equal key texts: by default the same observation."""

    key: Key = "observation"

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [by_key(key_texts(group.steps, self.key)) for group in groups]


@dataclass(frozen=True)
class SimilarObservation(Partition):
    threshold: float = 0.95

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [by_similarity([step.observation.text for step in group.steps], self.threshold) for group in groups]


# Layer, pooling and radius for clustering hidden states: the user's, else calibrated, else published values; radius search.

PUBLISHED_LAYER, PUBLISHED_DEPTH = -8, 28  # the published layer, and the depth of the paper's models
PUBLISHED_EPSILON = {"actor": 0.10, "ngram": 0.25, "identity": 0.0, "sentence": 0.10}
"""by embedder; the radius for sentence encoders is ours, the paper has none"""


@dataclass(frozen=True)
class Geometry:
    """Layer, pooling and radius of a clustering; None: not chosen yet."""

    layer: int | None = None
    pooling: Pooling | None = None
    epsilon: float | None = None


def late_layer(layers: int) -> int:
    """The published depth scaled to any number of layers, before the final one.

    >>> late_layer(28), late_layer(4)
    (-8, -2)
    """
    return -min(max(2, round(-PUBLISHED_LAYER * layers / PUBLISHED_DEPTH)), layers)


def choose_geometry(chosen: Geometry, embedder: str, base: Base, adaptive: bool) -> tuple[Geometry, tuple[str, ...]]:
    """(geometry with missing values filled in, notes on them).

    A calibrated radius is used only with the layer and pooling it was calibrated for. With `adaptive`, epsilon stays None.
    In a model with at most 8 layers, the layer is the one at the published relative depth, before the last.
    """
    if base.calibrated is None:
        return chosen, ()
    saved = base.calibrated.get(embedder)
    notes = []
    if saved is not None and chosen.layer in (None, saved.get("layer")) and chosen.pooling in (None, saved.get("pooling")):
        names = [n for n in ("layer", "pooling", "epsilon") if saved.get(n) is not None and getattr(chosen, n) is None]
        calibrated = {name: saved[name] for name in names if not (adaptive and name == "epsilon")}
        chosen = replace(chosen, **calibrated)
        if calibrated:
            summary = ", ".join(f"{name} = {value}" for name, value in calibrated.items())
            notes.append(f"{summary}, as `tacit calibrate` found for {base.model} in this world and context")
    if embedder == "actor":
        layers, layer = base.layers, chosen.layer
        if layer is None:
            layer = PUBLISHED_LAYER
            if layers is not None and layers <= -PUBLISHED_LAYER:
                layer = late_layer(layers)
                notes.append(
                    f"{base.model} has {layers} layers, so layer = {layer} instead of {PUBLISHED_LAYER}; "
                    "`tacit calibrate` finds a better one"
                )
        if layers is not None and not -layers - 1 <= layer <= layers:
            raise TacitError(
                f"layer = {layer} does not exist in {base.model!r}, which has {layers}: give -1 (the last) to "
                f"{-layers - 1} (the embeddings), or let `tacit calibrate` choose."
            )
        chosen = replace(chosen, layer=layer, pooling=chosen.pooling or "last")
    if chosen.epsilon is None and not adaptive:
        chosen = replace(chosen, epsilon=PUBLISHED_EPSILON[embedder])
    return chosen, tuple(notes)


# Radius search (appendix F): the median cluster should have 4 to 8 members. Members of larger clusters differ in value (the
# bias of a cluster mean is at most 2Lε); with smaller clusters, too many steps are singletons without step-level credit.

LOW, HIGH, TARGET, PROBES = 0.02, 0.40, (4.0, 8.0), 6
LEAST = LOW / 1024  # lower end of the second search, for models whose hidden states are nearly parallel


def median_cluster_size(clusters: Sequence[np.ndarray]) -> float:
    """Median number of members over all clusters of all groups; 0 if there are none."""
    sizes = np.concatenate([np.bincount(cluster_N[cluster_N >= 0]) for cluster_N in clusters]) if clusters else np.zeros(0)
    return float(np.median(sizes)) if len(sizes) else 0.0


def search_radius(features: Sequence[Features]) -> tuple[float, float]:
    """(ε, median cluster size). Bisects the published range until the median is within the target. If clusters are still too
    large, bisects the range below geometrically. If no probe reaches the target, returns the first of the nearest."""
    best = _bisect(features, LOW, HIGH, lambda low, high: (low + high) / 2)
    if best[2] > TARGET[1]:
        below = _bisect(features, LEAST, LOW, lambda low, high: float(np.sqrt(low * high)))
        best = min(best, below, key=lambda probe: probe[0])
    return best[1:]


def _bisect(
    features: Sequence[Features], low: float, high: float, midpoint: Callable[[float, float], float]
) -> tuple[float, float, float]:
    """(distance of the best probe from the target, its ε, its median)"""
    best = (np.inf, 0.0, 0.0)
    for _ in range(PROBES):
        epsilon = midpoint(low, high)
        median = median_cluster_size([by_cosine(rows, epsilon) for rows in features])
        missed = max(TARGET[0] - median, median - TARGET[1], 0.0)
        if missed < best[0]:
            best = (missed, epsilon, median)
        if missed == 0.0:
            break
        low, high = (epsilon, high) if median < TARGET[0] else (low, epsilon)
    return best


FILE = "radius.json"


class AdaptiveRadius(Companion):
    """Chooses ε on the run's first groups, before their credit, and keeps it; saved with checkpoints."""

    name = "radius"
    read_in_rollouts: ClassVar[bool] = False

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._value: float | None = None

    @property
    def value(self) -> float:
        if self._value is None:
            raise TacitError("the adaptive radius is not set yet; call `observe` with groups first.")
        return self._value

    def observe(self, groups: Sequence[Group], policy: Encoder, info: IterationInfo | None = None) -> dict[str, float]:
        if self._value is None:
            features = self.embedder([group for group in groups if group.steps], policy)
            if not features:  # every episode crashed; retry in the next iteration
                return {}
            self._value, median = search_radius(features)
            return {"radius": self._value, "radius_median_size": median}
        return {"radius": self._value}

    def save(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps({"value": self._value}), encoding="utf-8")

    def load(self, directory: Path) -> None:
        self._value = read_json(directory / FILE)["value"]


@dataclass(frozen=True)
class Clusters(Partition):
    """Steps whose features are within a cosine radius (Eq. 3)."""

    embedder: Embedder
    radius: float | AdaptiveRadius = 0.10

    @property
    def needs(self) -> frozenset[str]:
        return self.embedder.needs

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[np.ndarray]:
        epsilon = self.radius if isinstance(self.radius, int | float) else self.radius.value
        return [by_cosine(features, epsilon) for features in self.embedder(groups, policy)]
