"""A custom method: GRPO with a cost per step. The script compares it with GRPO and with RLOO plus the cost.

python examples/own_method.py
tacit train --method examples/own_method.py:Hurry --cost 0.2 --world countdown     # the same from the command line
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import tacit
from tacit.core.credit import Rewards
from tacit.core.method import RewardTerm, adds
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class StepCost(RewardTerm):
    """A reward of −cost per step. Returns propagate it to earlier steps, like any reward."""

    cost: float

    def __call__(self, groups, info):
        return [Rewards.per_step(group, np.full(len(group.steps), -self.cost)) for group in groups]


@dataclass(frozen=True)
class Hurry(GRPO):
    """GRPO with a cost per step."""

    name: ClassVar[str] = "hurry"

    cost: float = 0.1
    """subtracted from the reward of every step"""

    def changes(self, world, resources):
        return (adds("rewards", "step cost", StepCost(self.cost)),)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="runs/hurry")
    parser.add_argument("--steps", type=int, default=200, help="imitation steps")
    parser.add_argument("--iterations", type=int, default=10, help="RL iterations")
    parser.add_argument("--panel", type=int, default=32, help="evaluation tasks")
    args = parser.parse_args()

    for method in (GRPO, Hurry(cost=0.3), ["rloo", Hurry]):
        name = "+".join(m if isinstance(m, str) else m.name for m in (method if isinstance(method, list) else [method]))
        run = tacit.train(
            world="countdown",
            method=method,
            model="tiny-base",
            out=f"{args.out}/{name}",
            resume=True,
            quiet=True,
            sft={"steps": args.steps, "tasks": 200},
            iterations=args.iterations,
            tasks=256,
            groups=8,
            group_size=4,
            lr=2e-4,
            evaluation={"tasks": args.panel, "every": 0, "untrained": False},
        )
        episodes = run.episodes("eval-rl", rows=True)
        print(f"{name}: success {run.success:.1%}, {np.mean([episode['turns'] for episode in episodes]):.1f} steps an episode")
