"""Use a skill module in your own program: train and export it once, then ask it for one action at a time.

python examples/skill_module.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tacit
from tacit.modules import Agent
from tacit.modules.export import export_run
from tacit.worlds import get_environment

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("modules/countdown"))
    parser.add_argument("--steps", type=int, default=200, help="imitation steps if the module has to be trained")
    args = parser.parse_args()

    if not args.out.exists():
        run = tacit.train(
            world="countdown",
            model="tiny-base",
            out=args.out.with_name(f"{args.out.name}-run"),
            resume=True,
            tasks=256,
            sft={"steps": args.steps, "tasks": 200},
            iterations=0,
            evaluation={"tasks": 8, "untrained": False},
        )
        export_run(run.path, "newest", args.out)

    world = get_environment("countdown")
    agent = Agent.load(args.out)
    for task in world.tasks("test", 3, 7):
        live = world.make()
        observation, done = live.reset(task), False
        agent.begin(task)
        print(task.goal)
        for _ in range(world.max_steps):
            transition = live.step(agent.act(observation))
            agent.observe(transition)
            observation, done = transition.observation, transition.done
            print("  ", observation.text)
            if done:
                break
        print("   solved" if transition.success else "   not solved")
        live.close()
