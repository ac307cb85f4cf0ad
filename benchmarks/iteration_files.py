"""Number of files and functions of tacit/ that one RL iteration executes.

    python benchmarks/iteration_files.py [--fast auto|off] [--list]

Runs GRPO in Countdown with a tiny model on the CPU. The first iteration fills caches; the second is counted, from
the start of `Loop.iterate` to its end, in this thread and those it starts.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import tacit
from tacit.core.method import Schedule
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.methods.grpo import GRPO
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

PACKAGE = Path(tacit.__file__).parent


def executed_functions(fast: Literal["auto", "off"] = "auto") -> dict[str, set[str]]:
    """file (relative to tacit/) -> names of executed functions; comprehensions and lambdas count as their function"""
    world = get_environment("countdown")
    schedule = Schedule(groups=2, group_size=4, iterations=2, lr=1e-4)
    method = GRPO(schedule=schedule).with_prompt(wording="terse", style="bare").build(world)
    policy = load_policy("tiny", EngineSettings(device="cpu", threads=1, fast=fast), 0, lambda: world.example_texts(0))
    policy.freeze_reference()
    loop = Loop([Collector(method, world.tasks("train", 8, 0), InProcessPool(world.make), 12, 3)], policy, 0, 2)
    loop.iterate(1)
    codes: set[CodeType] = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(record)
    threading.setprofile(record)
    try:
        loop.iterate(2)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    found: dict[str, set[str]] = {}
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE):
            function = code.co_qualname.partition(".<locals>.<")[0]
            found.setdefault(path.relative_to(PACKAGE).as_posix(), set()).add(function)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also list the functions of each file")
    parser.add_argument("--fast", choices=("auto", "off"), default="auto", help="value of --engine.fast; off uses transformers")
    arguments = parser.parse_args()
    found = executed_functions(arguments.fast)
    for path, functions in sorted(found.items()):
        print(f"{len(functions):4d}  {path}")
        if arguments.list:
            print("".join(f"        {name}\n" for name in sorted(functions)), end="")
    print(f"{len(found)} files, {sum(map(len, found.values()))} functions")


if __name__ == "__main__":
    sys.exit(main())
