"""Repair a Python package in a sandbox: one episode of the oracle, then the shares that agents without a model solve.

python examples/repair_code.py --tasks 4
"""

from __future__ import annotations

import argparse

from tacit.worlds import get_environment

if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--world", default="code", help="code, code+tests=hidden, code+folder=DIR")
    options.add_argument("--split", default="test")
    options.add_argument("--tasks", type=int, default=4)
    options.add_argument("--experts", default="oracle,random,none")
    chosen = options.parse_args()

    code = get_environment(chosen.world)
    tasks = code.tasks(chosen.split, chosen.tasks, seed=0)
    world = code.make()

    def play(name, task, show=False):
        """Returns whether the expert solves the task."""
        expert, observation = code.experts[name](task), world.reset(task)
        for _ in range(code.max_steps):
            action = expert.act(observation)
            transition = world.step(action)
            observation = transition.observation
            if show:
                print(f"> {action}\n{observation.text}\n")
            if transition.done:
                break
        return transition.success

    print(tasks[0].goal, "\n")
    play("oracle", tasks[0], show=True)
    for name in chosen.experts.split(","):
        won = sum(play(name, task) for task in tasks)
        print(f"{name}: {won} of {len(tasks)} solved")
    world.close()
    code.make.close()
