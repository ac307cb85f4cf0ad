"""What the benchmarks of kernels share: their options, which GPU it is, and the time of a call on it."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch


def begin(benchmark: str, doc: str | None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """(options, what the result begins with), where there is a GPU."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="the median counts (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("these kernels are for a GPU, and there is none here.")
    result = {"benchmark": benchmark, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"{result['device']}, torch {result['torch']}")
    return args, result


def median_us(call: Callable[[], Any], repeats: int, between: Callable[[], Any] = lambda: None) -> float:
    """Median microseconds, the first three calls left out; `between` is done before each."""
    found = []
    for repeat in range(-3, repeats):
        between()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        if repeat >= 0:
            found.append(before.elapsed_time(after) * 1e3)
    return statistics.median(found)
