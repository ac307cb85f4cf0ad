"""The machine: joining a Ray cluster, counting usable CPUs, and importing bm25s without JAX."""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, first_line, install_command
from tacit.core.trust import check_typed

LOCAL_CLUSTER = "local"  # address that starts a new Ray on this machine

ANSWER_S = 10.0  # seconds to wait for a cluster; Ray itself would wait for more than nine minutes

_joined = ""  # address of the joined cluster; a process can join only one


def join_cluster(address: str, setting: str, processes: int) -> Any:
    """Join the Ray cluster at `address` and return the module `ray`. `local` starts a new Ray with at least `processes` CPUs.
    `setting`: the flag that gave the address, for messages."""
    global _joined
    if address not in (LOCAL_CLUSTER, "auto"):
        check_typed(address, f"a file names the Ray cluster at {address!r}, which could run any code here", setting)
    try:
        import ray
    except ImportError as error:
        raise TacitError(f"{setting} {address} needs Ray, which is not installed: {install_command('cluster')}.") from error
    if ray.is_initialized():
        if _joined and _joined != address:
            raise TacitError(
                f"{setting} {address}: this process has already joined the Ray cluster at {_joined!r} and can join only one; "
                "use the same address for the engine and the world workers."
            )
        return ray
    options = {"num_cpus": max(processes, os.cpu_count() or 1), "include_dashboard": False} if address == LOCAL_CLUSTER else {}
    try:
        # Fail at once if nothing listens at the address; Ray would wait for minutes.
        if place := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address):
            socket.create_connection((place[1], int(place[2])), timeout=ANSWER_S).close()
        # Always pass the address: without one, Ray joins any cluster on this machine.
        ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    except Exception as error:
        first = first_line(error).rstrip(".")
        if address == LOCAL_CLUSTER:
            raise TacitError(f"Ray did not start on this machine: {first}. If the machine is busy, try again later.") from error
        raise TacitError(
            f"no Ray cluster answers at {address!r}: {first}. Start one with `ray start --head` and give its address, "
            f"or use {setting} {LOCAL_CLUSTER} for a new one. A cluster that requires a token "
            "needs RAY_AUTH_MODE=token here too."
        ) from error
    _joined = address
    return ray


def import_path() -> str:
    """A PYTHONPATH that lets another process import the same modules."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def usable_cpus() -> int:
    """CPUs in the affinity mask, or the container's CPU quota if that is smaller."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def load_bm25s() -> Any:
    """The module `bm25s`, imported without JAX, unless JAX is loaded already. bm25s would import JAX for a faster top-k; JAX
    reserves three quarters of a GPU's memory and crashes processes forked later."""
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # importing it now is an ImportError
    try:
        return importlib.import_module("bm25s")
    except ImportError as error:
        raise TacitError("search needs the package bm25s, which is not installed: `pip install bm25s`.") from error
    finally:
        if hidden:
            del sys.modules["jax"]
