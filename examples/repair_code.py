"""Repair a Python package in a sandbox: print one episode of the oracle, then the tasks that each rule-based expert solves.

python examples/repair_code.py --tasks 4
"""

from __future__ import annotations

import argparse

from tacit.worlds import get_environment

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", default="code", help="code, code+tests=hidden, code+folder=DIR")
    parser.add_argument("--split", default="test")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--families", default="", help="kinds of defect, separated by commas; default: all")
    parser.add_argument("--max-steps", type=int, default=50)
    parser.add_argument("--experts", default="oracle,random,none")
    args = parser.parse_args()

    code = get_environment(args.world)
    families = args.families.split(",") if args.families else []
    tasks = code.tasks_of(args.split, args.tasks, 0, families)
    world = code.make()

    def play(name, task, show=False):
        """Returns whether the expert solves the task."""
        expert, observation = code.experts[name](task), world.reset(task)
        for _ in range(args.max_steps):
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
    for name in args.experts.split(","):
        won = sum(play(name, task) for task in tasks)
        print(f"{name}: {won} of {len(tasks)} solved")
    world.close()
    code.make.close()
