"""Model shapes, devices and measured efficiencies: the inputs of memory and time estimates."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tacit.core.errors import TacitError, unknown
from tacit.core.files import read_json


@dataclass(frozen=True)
class ModelShape:
    """A dense Llama-style decoder: L layers of width D, H query and K key heads of dimension d, a gated MLP of width F,
    vocabulary V."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int  # F
    vocabulary: int
    tied: bool = False  # the head shares the embedding

    @property
    def layer_weights(self) -> int:
        """2·D·d·(H + K) + 3·D·F + 2·D: attention, MLP, two norms; biases are ignored."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.inner + 2 * self.width

    @property
    def weights(self) -> int:
        """L·layer + V·D (twice with an untied head) + D"""
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * self.layer_weights + embeddings + self.width

    @property
    def pass_weights(self) -> int:
        """weights used in matrix products for each token: all but the embedding"""
        return self.layers * self.layer_weights + self.vocabulary * self.width

    def lora_weights(self, rank: int) -> int:
        """r·(in + out) of the seven projections of a layer"""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.width + queries) + 2 * (self.width + keys)
        return self.layers * rank * (attention + 3 * (self.width + self.inner))

    def cache_bytes(self, number_bytes: int = 2) -> int:
        """Keys and values of one token: 2·L·K·d numbers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * number_bytes


SIZES = {
    "135M": ModelShape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49_152, tied=True),
    "0.5B": ModelShape("Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, 151_936, tied=True),
    "1.5B": ModelShape("Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 8960, 151_936, tied=True),
    "3B": ModelShape("Qwen2.5-3B", 36, 2048, 16, 2, 128, 11_008, 151_936, tied=True),
    "4B": ModelShape("Qwen3-4B", 36, 2560, 32, 8, 128, 9728, 151_936, tied=True),
    "7B": ModelShape("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18_944, 152_064),
    "8B": ModelShape("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14_336, 128_256),
    "14B": ModelShape("Qwen3-14B", 40, 5120, 40, 8, 128, 17_408, 151_936),
    "32B": ModelShape("Qwen3-32B", 64, 5120, 64, 8, 128, 25_600, 151_936),
    "70B": ModelShape("Llama-3.1-70B", 80, 8192, 64, 8, 128, 28_672, 128_256),
    "405B": ModelShape("Llama-3.1-405B", 126, 16_384, 128, 8, 128, 53_248, 128_256),
}
"""size -> a published model of that size, by its config.json"""


def shape_of_size(text: str) -> ModelShape | None:
    """The shape of a size such as `8B`, `1.5B` or `360M`; None if the text is not a size. A size that is not in `SIZES` scales
    the nearest one: layers, width and inner width by one factor, found by bisection."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MBT])", text.strip().upper())
    if not match:
        return None
    if text.strip().upper() in SIZES:
        return SIZES[text.strip().upper()]
    wanted = float(match[1]) * {"M": 1e6, "B": 1e9, "T": 1e12}[match[2]]
    if wanted <= 0:
        raise TacitError(f"model size {text} must be above 0, for example 8B.")
    shape = min(SIZES.values(), key=lambda shape: abs(shape.weights / wanted - 1) + abs(wanted / shape.weights - 1))

    def scale(factor: float) -> ModelShape:
        width, inner = (max(16, round(size * factor / 16) * 16) for size in (shape.width, shape.inner))
        heads = max(shape.kv_heads, round(shape.heads * factor / shape.kv_heads) * shape.kv_heads)
        layers = max(1, round(shape.layers * factor))
        return replace(shape, name=f"{shape.name}, stretched", layers=layers, width=width, heads=heads, inner=inner)

    low, high = 0.01, 100.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if scale(middle).weights < wanted else (low, middle)
    return min(scale(low), scale(high), key=lambda candidate: abs(candidate.weights - wanted))


def shape_of_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape of a transformers config.json. Raises for mixture-of-experts models and missing fields."""
    config = config.get("text_config") or config
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if experts:
        raise TacitError(f"model {name!r} is a mixture of {experts} experts; only dense models can be planned.")
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
        raise TacitError(f"the config.json of {name!r} has no {error}; give a size instead, such as --model 8B.") from error


def shape_in(directory: Path) -> ModelShape:
    file = directory / "config.json"
    try:
        return shape_of_config(read_json(file), directory.name)
    except (OSError, ValueError) as error:
        raise TacitError(f"cannot read {file}: {error}.") from error


# Devices: peaks from the makers' data sheets (dense bfloat16 with float32 accumulation; SXM models if there are several). Cards
# without NVLink: PCIe 4.0 x16, 32 GB/s one way. cpu: one core, measured 139 GFLOP/s in float32
# (docs/experiments/archive/log.md, Speed), estimated 20 GB/s.

GB = 1e9


@dataclass(frozen=True)
class Device:
    name: str
    memory: float  # bytes
    bandwidth: float  # bytes per second from device memory
    peak: float  # FLOP/s
    link: float  # bytes per second to a device in the same machine, one way
    overhead: float = 2 * GB  # bytes of driver, runtime and fragmentation
    number_bytes: int = 2  # bytes per weight in forward passes: bfloat16, or float32 on a CPU


DEVICES = {
    device.name: device
    for device in (
        Device("b200", 180 * GB, 7.7e12, 2250e12, 900 * GB),
        Device("h200", 141 * GB, 4.8e12, 989e12, 450 * GB),
        Device("h100", 80 * GB, 3.35e12, 989e12, 450 * GB),
        Device("a100", 80 * GB, 2.039e12, 312e12, 300 * GB),
        Device("a100-40", 40 * GB, 1.555e12, 312e12, 300 * GB),
        Device("l40s", 48 * GB, 0.864e12, 362e12, 32 * GB),
        Device("l4", 24 * GB, 0.3e12, 121e12, 32 * GB),
        Device("4090", 24 * GB, 1.008e12, 165e12, 32 * GB),
        Device("cpu", 8 * GB, 20 * GB, 139e9, 5 * GB, overhead=0.5 * GB, number_bytes=4),
    )
}


def find_gpus() -> list[str]:
    """Names from nvidia-smi of the GPUs that this process may use; empty without nvidia-smi."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [name.strip() for name in names if name.strip()]
    return gpus if visible is None else gpus[: len([one for one in visible.split(",") if one.strip()])]


def choose_device(name: str, gpus: Sequence[str] = ()) -> tuple[Device, str]:
    """(the device to plan for, the reason): the named one, else the first of `gpus`, else an H100."""
    if name:
        if name.lower() not in DEVICES:
            raise unknown("GPU", name, DEVICES)
        return DEVICES[name.lower()], "--gpu"
    if not gpus:
        return DEVICES["h100"], "assumed, none is found here; --gpu NAME plans for another"
    words = set(re.split(r"[^a-z0-9]+", gpus[0].lower()))
    model = next((name for name in DEVICES if name in words), None)
    if model is None:
        return DEVICES["h100"], f"assumed, {gpus[0]} is not in the table; --gpu NAME plans for another"
    return DEVICES["a100-40" if model == "a100" and "40gb" in words else model], f"found here: {gpus[0]}"


@dataclass(frozen=True)
class Efficiency:
    """Achieved shares of peak throughput, and fixed overheads. η(D) = η∞·D / (D + D½): narrow matrix products leave a GPU idle.
    Measured with 135M (D = 576) and 1.5B (D = 1,536) on one H200 (docs/experiments/archive/planning_notes.md); updates
    of 8B on H100s are torchtitan's."""

    learning: float = 0.45
    learning_half: float = 1600.0
    prefill: float = 0.65
    prefill_half: float = 400.0
    weights: float = 0.75  # share of the bandwidth, for weights in a decode step
    cache: float = 0.2  # share of the bandwidth, for keys, values and logits
    layer_s: float = 57e-6  # seconds per layer of a decode step: kernel launches
    row_s: float = 0.0  # seconds per row of a decode step: CPU work per token

    def share(self, of: Literal["learning", "prefill"], width: int) -> float:
        most, half = (self.learning, self.learning_half) if of == "learning" else (self.prefill, self.prefill_half)
        return most * width / (width + half)


SAMPLERS = {"local": Efficiency(), "vllm": Efficiency(cache=0.6, layer_s=30e-6, row_s=38e-6)}
"""by sampler: the local engine, or vLLM with log-probabilities, which takes about 40 µs per row for any model"""

ON_CPU = Efficiency(learning=0.56, learning_half=0.0, prefill=0.78, prefill_half=0.0, weights=0.5, cache=0.2, layer_s=1e-3)
"""one core, float32: updates of 14.4k tokens/s (1M weights), and decode steps of 5.8 ms for 64 rows of the 1M model"""
