"""How large a model is, by its shape: the few numbers that memory and time depend on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder of the Llama family: L layers of width D with H query heads and K key heads of dimension d, a gated
    feed-forward of width F, a vocabulary of V."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """F"""
    vocabulary: int
    tied: bool = False
    """the head is the embedding"""

    @property
    def layer_weights(self) -> int:
        """2·D·d·(H + K) + 3·D·F + 2·D: attention, feed-forward, two norms; biases are left out."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.inner + 2 * self.width

    @property
    def weights(self) -> int:
        """L·layer + V·D (twice where the head is its own) + D"""
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * self.layer_weights + embeddings + self.width

    @property
    def pass_weights(self) -> int:
        """those that a token is multiplied with: all but the embedding it is looked up in"""
        return self.layers * self.layer_weights + self.vocabulary * self.width

    def lora_weights(self, rank: int) -> int:
        """r·(in + out) of each of the seven projections of a layer"""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.width + queries) + 2 * (self.width + keys)
        return self.layers * rank * (attention + 3 * (self.width + self.inner))

    def cache_bytes(self, number_bytes: int = 2) -> int:
        """Keys and values of one token: 2·L·K·d numbers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * number_bytes


def _shape(name: str, layers: int, width: int, heads: int, kv_heads: int, inner: int, vocabulary: int, tied: bool = False,
           head_dim: int = 0) -> ModelShape:  # fmt: skip
    return ModelShape(name, layers, width, heads, kv_heads, head_dim or width // heads, inner, vocabulary, tied)


SIZES = {
    "135M": _shape("SmolLM2-135M", 30, 576, 9, 3, 1536, 49_152, tied=True),
    "0.5B": _shape("Qwen2.5-0.5B", 24, 896, 14, 2, 4864, 151_936, tied=True),
    "1.5B": _shape("Qwen2.5-1.5B", 28, 1536, 12, 2, 8960, 151_936, tied=True),
    "3B": _shape("Qwen2.5-3B", 36, 2048, 16, 2, 11_008, 151_936, tied=True),
    "4B": _shape("Qwen3-4B", 36, 2560, 32, 8, 9728, 151_936, tied=True, head_dim=128),
    "7B": _shape("Qwen2.5-7B", 28, 3584, 28, 4, 18_944, 152_064),
    "8B": _shape("Llama-3.1-8B", 32, 4096, 32, 8, 14_336, 128_256),
    "14B": _shape("Qwen3-14B", 40, 5120, 40, 8, 17_408, 151_936, head_dim=128),
    "32B": _shape("Qwen3-32B", 64, 5120, 64, 8, 25_600, 151_936, head_dim=128),
    "70B": _shape("Llama-3.1-70B", 80, 8192, 64, 8, 28_672, 128_256),
    "405B": _shape("Llama-3.1-405B", 126, 16_384, 128, 8, 53_248, 128_256),
}
"""what a size stands for: a published model of that size, by its config.json"""

UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}


def shape_of_size(text: str) -> ModelShape | None:
    """`8B`, `1.5B`, `360M`; None where the text is no size. A size that is not in `SIZES` is the nearest one stretched:
    layers and widths by the cube root of how much larger it is."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([MBT])", text.strip().upper())
    if not found:
        return None
    if text.strip().upper() in SIZES:
        return SIZES[text.strip().upper()]
    wanted = float(found[1]) * UNITS[found[2]]
    if wanted <= 0:
        raise TacitError(f"a model of {text} weights is none; say a size such as 8B.")
    nearest = min(SIZES.values(), key=lambda shape: abs(shape.weights / wanted - 1) + abs(wanted / shape.weights - 1))
    return stretched(nearest, wanted)


def stretched(shape: ModelShape, weights: float) -> ModelShape:
    """The shape with about that many weights: each of layers, width and inner width times the same factor, found by halving."""

    def by(factor: float) -> ModelShape:
        width = max(16, round(shape.width * factor / 16) * 16)
        heads = max(shape.kv_heads, round(shape.heads * factor / shape.kv_heads) * shape.kv_heads)
        return replace(
            shape,
            name=f"{shape.name}, stretched",
            layers=max(1, round(shape.layers * factor)),
            width=width,
            heads=heads,
            inner=max(16, round(shape.inner * factor / 16) * 16),
        )

    low, high = 0.01, 100.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if by(middle).weights < weights else (low, middle)
    return min(by(low), by(high), key=lambda made: abs(made.weights - weights))


def shape_of_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that a transformers config.json describes; what this arithmetic does not know is refused."""
    config = config.get("text_config") or config
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if experts:
        raise TacitError(f"model {name!r} is a mixture of {experts} experts; a plan is made for dense models only.")
    try:
        heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
            name=name,
            layers=int(config["num_hidden_layers"]),
            width=width,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or width // heads),
            inner=int(config.get("intermediate_size") or 4 * width),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TacitError(
            f"the config.json of {name!r} does not say {error}; name a size instead, such as --model 8B."
        ) from error


def shape_in(directory: Path) -> ModelShape:
    """Of a saved transformers model."""
    file = directory / "config.json"
    try:
        return shape_of_config(json.loads(file.read_text(encoding="utf-8")), directory.name)
    except (OSError, ValueError) as error:
        raise TacitError(f"cannot read {file}: {error}.") from error
