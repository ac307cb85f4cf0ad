"""A method of your own: GRPO in which every step costs, beside GRPO itself, and two methods added together.

python examples/own_method.py
tacit train --method examples/own_method.py:Hurry --cost 0.2 --world countdown     # the same from the command line
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import tacit
from tacit.core.composition import adds
from tacit.core.credit import Rewards
from tacit.core.method import RewardTerm
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class StepCost(RewardTerm):
    """−cost on every step; it flows to earlier steps as every reward does."""

    cost: float

    def __call__(self, groups, info):
        return [Rewards.per_step(group, np.full(len(group.steps), -self.cost)) for group in groups]


@dataclass(frozen=True)
class Hurry(GRPO):
    """GRPO in which every step costs."""

    name: ClassVar[str] = "hurry"

    cost: float = 0.1
    """taken off for every step"""

    def changes(self, world, resources):
        return (adds("rewards", "step cost", StepCost(self.cost)),)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--out", default="runs/hurry")
    options.add_argument("--steps", type=int, default=200, help="of imitation")
    options.add_argument("--iterations", type=int, default=10, help="of RL")
    options.add_argument("--panel", type=int, default=32, help="tasks to measure on")
    chosen = options.parse_args()

    for method in (GRPO, Hurry(cost=0.3), ["rloo", Hurry]):
        name = "+".join(m if isinstance(m, str) else m.name for m in (method if isinstance(method, list) else [method]))
        run = tacit.train(
            world="countdown",
            method=method,
            model="tiny-base",
            out=f"{chosen.out}/{name}",
            resume=True,
            quiet=True,
            sft={"steps": chosen.steps, "tasks": 200},
            iterations=chosen.iterations,
            tasks=256,
            groups=8,
            group_size=4,
            lr=2e-4,
            evaluation={"tasks": chosen.panel, "every": 0, "untrained": False},
        )
        played = run.episodes("eval-rl", rows=True)
        print(f"{name}: success {run.success:.1%}, {np.mean([episode['turns'] for episode in played]):.1f} steps an episode")
