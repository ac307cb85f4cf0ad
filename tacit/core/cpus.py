"""How many CPUs there are for us."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus() -> int:
    """CPUs in the affinity mask, or the container's quota where that is smaller."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
