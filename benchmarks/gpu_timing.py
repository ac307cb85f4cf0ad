"""Shared by kernel benchmarks: options, device information, and timing of a call on the GPU."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch


def begin(benchmark: str, doc: str | None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse the options and return them with the first fields of the result. Exits if there is no GPU."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="timed calls; the median counts (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("these kernels need a GPU, and none was found.")
    result = {"benchmark": benchmark, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"{result['device']}, torch {result['torch']}")
    return args, result


def median_us(call: Callable[[], Any], repeats: int, between: Callable[[], Any] = lambda: None) -> float:
    """Median microseconds of a call, after three warm-up calls; `between` runs untimed before each call."""
    times_us = []
    for repeat in range(-3, repeats):
        between()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        if repeat >= 0:
            times_us.append(before.elapsed_time(after) * 1e3)
    return statistics.median(times_us)
