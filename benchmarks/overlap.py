"""Benefit of overlapping rollout and update: seconds per iteration with --overlap 0 and 1, and idle shares.

    python benchmarks/overlap.py                                  # one rank, one vLLM server, 10 ms per world step
    python benchmarks/overlap.py --think-s 0.05 --ranks 2 --json

The world is Countdown with a delay per step, the method GRPO, the model tiny-base. `learning` and `playing` are seconds per
iteration of update and rollout. `ranks_wait` and `servers_wait` are the shares of an iteration in which ranks or servers idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tacit.core.method import Resources, Schedule
from tacit.core.protocols import ModelSource
from tacit.core.types import Observation, Task, Transition
from tacit.engines.sharded.policy import ShardedPolicy, load_policy
from tacit.engines.sharded.settings import ShardedSettings
from tacit.methods.grpo import GRPO
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import PHASES, Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("countdown")


class Thinking:
    """Countdown with a delay per step."""

    def __init__(self, think_s: float) -> None:
        self._world, self._think_s = WORLD.make(), think_s

    def reset(self, task: Task) -> Observation:
        return self._world.reset(task)

    def step(self, action: str) -> Transition:
        time.sleep(self._think_s)
        return self._world.step(action)

    def close(self) -> None:
        self._world.close()


def measure(policy: ShardedPolicy, overlap: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Medians over the iterations after the first."""
    method = GRPO(
        kl=0.0,
        schedule=Schedule(groups=options.groups, group_size=options.group_size, iterations=options.iterations + 2, lr=1e-5),
    ).with_prompt(wording="terse", style="bare", history=0, admissible=False)
    worlds = InProcessPool(lambda: Thinking(options.think_s))
    collector = Collector(method.build(WORLD, Resources()), WORLD.tasks("train", 256, 0), worlds, 16, 4)
    loop = Loop([collector], policy, 0, options.iterations + 2, overlap=overlap)
    whole, learning, playing, stale = [], [], [], []
    for number in range(1, options.iterations + 2):
        began = time.perf_counter()
        done = loop.iterate(number)
        seconds = time.perf_counter() - began
        if number > 1:
            ahead = loop._next.seconds if loop._next else done.metrics["seconds_rollout"]
            whole.append(seconds)
            playing.append(ahead)
            learning.append(sum(done.metrics[f"seconds_{phase}"] for phase in PHASES if phase != "rollout"))
            stale.append(done.metrics["versions_behind"])
    took = statistics.median(whole)
    return {
        "overlap": int(overlap),
        "iteration_s": round(took, 2),
        "learning_s": round(statistics.median(learning), 2),
        "playing_s": round(statistics.median(playing), 2),
        "ranks_wait": round(1 - statistics.median(learning) / took, 2),
        "servers_wait": round(1 - statistics.median(playing) / took, 2),
        "versions_behind": statistics.mean(stale),
        "sampler_gap": done.metrics["sampler_gap"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--think-s", type=float, default=0.01)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--server-python", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = ShardedSettings(
        device="cpu", threads=1, ranks=options.ranks, servers=options.servers, server_python=options.server_python
    )
    policy = load_policy(ModelSource("tiny-base"), settings)
    try:
        with tempfile.TemporaryDirectory() as place:
            policy.save(Path(place) / "start")
            found = []
            for overlap in (False, True):
                policy.load(Path(place) / "start")
                found.append(measure(policy, overlap, options))
    finally:
        policy.close()
    if options.json:
        print(json.dumps(found))
        return
    for row in found:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
