"""Parity of our ScienceWorld with the scienceworld package: text, score and done of the same episodes, step by step.

    python benchmarks/scienceworld_parity.py [--episodes 200] [--steps 30] [--together 8] [--whole] [--json]

Every second episode follows the gold path; the others draw commands from the simulator's templates and objects, and some
nonsense. Ours runs `--together` episodes at a time in one JVM, interleaved, so that interference between episodes would show;
the package's `ScienceWorldEnv` plays them one after another. Its JVM gets our hash codes, since otherwise its runs
differ from each other. Its list of valid actions takes most of its time, and is skipped unless `--whole`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from random import Random

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.worlds import get_environment
from tacit.worlds.scienceworld.world import SERVED, find_jar, gold_path, write_patched_class

NONSENSE = ("", "0", "1", "xyzzy", "go to the moon", "focus", "open open door", "pick up", "ré\u200bsumé")


def package(whole: bool, mended: Path):
    """Start the package's environment, with our patched class written to the directory `mended`."""
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:+UnlockExperimentalVMOptions -XX:hashCode=2"
    write_patched_class(find_jar(), mended)
    try:
        from scienceworld import ScienceWorldEnv
    except ImportError as error:
        raise TacitError(f"the package scienceworld is not installed ({error})") from error

    class Quick(ScienceWorldEnv):
        def get_valid_action_object_combinations(self):
            return []

    made = (ScienceWorldEnv if whole else Quick)("", os.pathsep.join(map(str, (mended, find_jar()))), envStepLimit=10_000)
    del os.environ["JAVA_TOOL_OPTIONS"]
    return made


def play_theirs(env, task: Task, number: int, steps: int) -> tuple[list[str], list[tuple[str, int, bool]]]:
    """(actions, [(text, score, done)] of the reset and of each action)"""
    rng = Random(f"parity/{task.id}")
    env.load(task.data["task"], task.data["variation"], "")
    observation, info = env.reset()
    answers, actions = [(observation, info["score"], False)], []
    gold = list(gold_path(task.data["task"], task.data["variation"])) if number % 2 else []
    templates, things = sorted(set(env.get_possible_actions()) - {"reset task"}), []
    for at in range(steps):
        if number % 2:
            action = gold.pop(0) if gold else "wait1"
        elif rng.random() < 0.1:
            action = rng.choice(NONSENSE)
        else:
            things = env.get_possible_objects() if at % 5 == 0 else things
            action = rng.choice(templates)
            while "OBJ" in action:
                action = action.replace("OBJ", rng.choice(things or ["air"]), 1)
            if action.startswith("focus") and rng.random() < 0.8:  # a focus nearly always ends the episode
                action = "look around"
        observation, _, over, info = env.step(action)
        actions.append(action)
        answers.append((observation, info["score"], bool(over)))
        if over:
            break
    return actions, answers


def play_ours(tasks: list[Task], played: list[list[str]]) -> list[list[tuple[str, int, bool]]]:
    """Replay the actions in all episodes, interleaved turn by turn; returns [(text, score, done)] of each episode."""
    worlds = [SERVED() for _ in tasks]
    transcripts = [
        [(world.reset(task).text, round(100 * world.world._score), False)] for world, task in zip(worlds, tasks, strict=True)
    ]
    for turn in range(max(map(len, played))):
        for world, actions, answers in zip(worlds, played, transcripts, strict=True):
            if turn < len(actions):
                transition = world.step(actions[turn])
                score = -100 if transition.label == "wrong_focus" else round(100 * transition.score)
                answers.append((transition.observation.text, score, transition.done))
    for world in worlds:
        world.close()
    return transcripts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30, help="maximum steps per episode")
    parser.add_argument("--together", type=int, default=8, help="concurrent episodes of ours")
    parser.add_argument("--split", default="train")
    parser.add_argument("--whole", action="store_true", help="include the package's list of valid actions")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    tasks = get_environment("scienceworld").tasks(arguments.split, arguments.episodes, 0)
    tasks = [task for task in tasks if task.family != "genetics"]  # finding their gold paths takes a minute each
    with tempfile.TemporaryDirectory() as mended:
        try:
            env = package(arguments.whole, Path(mended))
        except TacitError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        env.load("boil", 0, "")  # loads the patched class
    equal = compared = 0
    differences: list[dict] = []
    for start in range(0, len(tasks), arguments.together):
        some = list(tasks[start : start + arguments.together])
        theirs = [play_theirs(env, task, start + at, arguments.steps) for at, task in enumerate(some)]
        ours = play_ours(some, [actions for actions, _ in theirs])
        for task, (actions, expected), answers in zip(some, theirs, ours, strict=True):
            for at, (their, our) in enumerate(zip(expected, answers, strict=False)):
                compared += 1
                equal += their == our
                if their != our:
                    action = actions[at - 1] if at else ""
                    differences.append({"task": task.id, "turn": at, "action": action, "theirs": their, "ours": our})
            if len(expected) != len(answers):
                differences.append({"task": task.id, "lengths": (len(expected), len(answers))})
        print(f"{start + len(some)} episodes: {equal} of {compared} answers equal", flush=True)
    for difference in differences[:10]:
        print(json.dumps(difference, ensure_ascii=False))
    if arguments.json:
        print(json.dumps({"episodes": len(tasks), "answers": compared, "equal": equal, "differences": differences[:10]}))
    SERVED.close()
    return 0 if equal == compared and not differences else 1


if __name__ == "__main__":
    sys.exit(main())
