"""A custom world and its training in one script: guess a number from the hints higher and lower. Half a minute on a CPU.

python examples/own_world.py
tacit play --policy runs/guess --task 3 --trust-code    # imports this file, which the run refers to
"""

from __future__ import annotations

import argparse
from random import Random

import tacit
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, Wording


class Guess:
    def reset(self, task):
        self.secret = task.data["secret"]
        return Observation("A number from 1 to 20.")

    def step(self, action):
        if not action.isdigit():
            return Transition(Observation("Answer with digits only, for example: 7"), effective=False)
        if int(action) == self.secret:
            return Transition(Observation("Right!"), done=True, success=True)
        return Transition(Observation("Higher." if int(action) < self.secret else "Lower."))

    def close(self):
        pass


class Bisect:
    """The expert that the policy imitates before RL."""

    def __init__(self, task):
        self.low, self.high, self.last = 1, 20, 0

    def act(self, observation):
        if observation.text == "Higher.":
            self.low = self.last + 1
        elif observation.text == "Lower.":
            self.high = self.last - 1
        self.last = (self.low + self.high) // 2
        return str(self.last)


class Words(Wording):
    """The text that the policy reads."""

    separator = "\n"

    def task(self, task):
        return task.goal

    def turn(self, number, observation, action):
        return f"{observation.text} {action}"

    def now(self, number, observation, admissible):
        return observation.text

    def request(self, style):
        return "Your guess:"


def tasks(split, count, seed):
    numbers = Random(f"{split}/{seed}").choices(range(1, 21), k=count)
    return [Task("guess", f"{split}/{i}", "guess", split, seed, "Find it.", {"secret": n}) for i, n in enumerate(numbers)]


GUESS = Environment(
    name="guess",
    summary="Guess a number, told higher or lower.",
    max_steps=8,
    make=Guess,
    tasks=tasks,
    splits=("train", "test"),
    families=("guess",),
    wordings={"full": Words(), "terse": Words()},
    experts={"bisect": Bisect},
    example_texts=lambda seed: ["A number from 1 to 20. Higher. Lower. Right! Find it. Your guess: 0123456789"] * 50,
    action_tokens=8,
)

if __name__ == "__main__":  # guarded, since `tacit eval` and worker processes import this file
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="runs/guess")
    parser.add_argument("--steps", type=int, default=150, help="imitation steps")
    parser.add_argument("--iterations", type=int, default=10, help="RL iterations")
    parser.add_argument("--panel", type=int, default=64, help="evaluation tasks")
    args = parser.parse_args()

    print("the expert:", tacit.evaluate("expert", GUESS, tasks=64))
    run = tacit.train(
        world=GUESS,
        model="tiny",  # a new policy with a million parameters
        out=args.out,
        resume=True,  # after an interruption, run the script again
        history=-1,  # the prompt has all past guesses
        sft={"steps": args.steps, "tasks": 200},
        iterations=args.iterations,
        groups=8,
        group_size=4,
        lr=2e-4,
        evaluation={"tasks": args.panel},
    )
    for trajectory in run.trajectories("eval-rl", step=args.iterations)[:3]:
        print(trajectory.task.data["secret"], "guessed as", [step.action for step in trajectory.steps])
    print("trained:", f"{run.success:.1%}", "in", run.path)
