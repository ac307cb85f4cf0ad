"""Devices by their published peaks, and the shares of them that were reached.

Peaks are dense bfloat16 with float32 sums, from the makers' data sheets:
    h200   nvidia.com/en-us/data-center/h200 (141 GB, 4.8 TB/s; 1,979 TFLOP/s with sparsity, half of it without; NVLink 900 GB/s
           both ways)
    h100   nvidia.com/en-us/data-center/h100 (SXM: 80 GB, 3.35 TB/s, the same arithmetic)
    a100   nvidia-a100-datasheet-us-nvidia-1758950-r4 (SXM: 80 GB, 2,039 GB/s, 312 TFLOP/s, NVLink 600 GB/s both ways)
    4090   NVIDIA Ada whitepaper (24 GB, 1,008 GB/s, 165.2 TFLOP/s with float32 sums), no NVLink: PCIe 4.0 x16, 32 GB/s one way
    cpu    no data sheet: one core of the machine the log's figures were taken on. Its products ran at 139 GFLOP/s in float32
           (LOG.md, Speed); 20 GB/s is our estimate of what one core reads
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.errors import unknown

GB = 1e9


@dataclass(frozen=True)
class Device:
    name: str
    memory: float
    """bytes"""
    bandwidth: float
    """bytes a second from its own memory"""
    peak: float
    """floating-point operations a second"""
    link: float
    """bytes a second to a neighbour in the same machine, one way"""
    overhead: float = 2 * GB
    """bytes that the driver, the runtime and fragments take"""
    number_bytes: int = 2
    """of a weight in use: bfloat16, or float32 on a CPU"""


DEVICES = {
    "h200": Device("h200", 141 * GB, 4.8e12, 989e12, 450 * GB),
    "h100": Device("h100", 80 * GB, 3.35e12, 989e12, 450 * GB),
    "a100": Device("a100", 80 * GB, 2.039e12, 312e12, 300 * GB),
    "4090": Device("4090", 24 * GB, 1.008e12, 165e12, 32 * GB),
    "cpu": Device("cpu", 8 * GB, 20 * GB, 139e9, 5 * GB, overhead=0.5 * GB, number_bytes=4),
}


def device_named(name: str) -> Device:
    if name.lower() not in DEVICES:
        raise unknown("device", name, DEVICES)
    return DEVICES[name.lower()]


@dataclass(frozen=True)
class Reached:
    """Shares of the peaks that are reached, and what is lost between. η(D) = η∞·D / (D + D½): narrow products leave a card
    idle.

    Found on one H200 (LOG.md, Speed; `benchmarks/rollout.py`, `benchmarks/train_step.py`), on 135M (D = 576) and 1.5B (D =
    1,536): updates of 143k and 40k tokens/s, prefill of 1.2M and 190k tokens/s (prompts alone against prompts in groups of
    eight), decode steps of 3.9 ms (135M, 256 rows), 9.0 ms (1,024 rows) and 5.3 ms (1.5B, 256 rows). Updates of 8B on H100s,
    33 to 39% of the peak, are torchtitan's.
    """

    learning: float = 0.45
    learning_half: float = 1600.0
    prefill: float = 0.65
    prefill_half: float = 400.0
    weights: float = 0.75
    """of the bandwidth, when weights are read for a decode step"""
    cache: float = 0.2
    """of the bandwidth, when keys, values and logits are"""
    layer_s: float = 57e-6
    """of a decode step for each layer, whatever its size: launches"""
    row_s: float = 0.0
    """of a decode step for each row: what a server does for every token on its CPU"""

    def learning_share(self, width: int) -> float:
        return self.learning * width / (width + self.learning_half)

    def prefill_share(self, width: int) -> float:
        return self.prefill * width / (width + self.prefill_half)


SAMPLERS = {
    "local": Reached(),
    "vllm": Reached(cache=0.6, layer_s=30e-6, row_s=38e-6),
}
"""who samples: the local engine, or vLLM with log-probabilities, which took 11.0 and 45.6 ms for a step of 256 and 1,024 rows
(135M) and 11.5 ms for 256 (1.5B) on the same card: some 40 µs a row, whatever the model"""

ON_CPU = Reached(learning=0.56, learning_half=0.0, prefill=0.78, prefill_half=0.0, weights=0.5, cache=0.2, layer_s=1e-3)
"""one core, float32: updates of 14.4k tokens/s (1M weights) and 3.5k (4M), prefill of 135M at some 400 tokens/s, and decode
steps of 5.8 ms for 64 rows of the 1M model, of which its four layers' overhead is the most"""


def reached_on(device: Device, sampler: str) -> Reached:
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    return ON_CPU if device.name == "cpu" else SAMPLERS[sampler]
