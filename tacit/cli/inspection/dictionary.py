"""`tacit inspect dictionary`: the phrases a run's successes are made of, how they came and went, and how it behaves.

A run whose method keeps a dictionary has saved it with its checkpoints. For any other run the dictionary is extracted from its
recorded episodes, iteration by iteration, as ReuseRL would have done: so a GRPO run can be read in the same way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacit.assembly.checks import open_world
from tacit.assembly.flags import Parser
from tacit.assembly.recipe import Recipe
from tacit.cli.inspection.dictionary_story import open_story
from tacit.core.errors import TacitError
from tacit.core.types import Task, Trajectory
from tacit.core.world import Environment
from tacit.evaluation.behaviour import Behaviour, behaviour
from tacit.evaluation.panels import Panel
from tacit.rewards.segmentation import world_alphabet
from tacit.runs.directory import read_settings
from tacit.runs.replay import recorded_steps, replay

SUMMARY_LINE = "Show a run's skill dictionary: its phrases, how they changed, its episodes in phrases, and how it behaves."


def run(argv: Sequence[str]) -> int:
    arguments, _ = make_parser().parse(argv)
    if arguments.episodes < 0 or arguments.top < 1:
        raise TacitError("--episodes must not be negative, and --top must be at least 1.")
    path = arguments.run
    recipe = replace(Recipe.from_json(read_settings(path)), out=path)
    world = open_world(recipe.world)
    world_alphabet(world, "a skill dictionary")
    tasks = world.tasks_of(recipe.train.split, recipe.train.tasks, recipe.train.seed)
    story = open_story(path, recipe, world, tasks, arguments.checkpoint)
    file, episodes = _episodes(path, tasks, arguments.iteration)
    behaviours = _behaviours(path, recipe, world, file, episodes)
    shown = episodes[: arguments.episodes]
    plot = None if arguments.no_plot else arguments.plot or path / "dictionary.png"
    if plot is not None:
        from tacit.cli.inspection.dictionary_plot import plot_dictionary

        plot_dictionary(plot, f"{world.name}, {recipe.method}", story.rates(), story.readings())
    if arguments.json:
        told = {name: found.to_json() for name, found in behaviours.items()}
        fields = {"source": story.source, "phrases": story.phrases(), "steps": story.steps, "behaviour": told}
        cut = [{"task": t.task.id, "success": t.success, "segments": story.cut(t)} for t in shown]
        print(json.dumps({**fields, "episodes": cut, "plot": str(plot) if plot else None}))
        return 0
    from tacit.cli.inspection.dictionary_view import show
    from tacit.cli.terminal import make_console

    show(make_console(), story, file, shown, behaviours, arguments.top, plot)
    return 0


def make_parser() -> Parser:
    parser = Parser("inspect dictionary", SUMMARY_LINE, usage="tacit inspect dictionary RUN [--iteration N] [--episodes N]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--checkpoint", default="", metavar="NAME", help="newest, best, or a name such as rl-000020")
    parser.add_argument("--iteration", type=int, metavar="N", help="whose episodes to show (default: the last recorded)")
    parser.add_argument("--episodes", type=int, default=8, metavar="N", help="how many of them, successes first (default: 8)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="how many phrases to list (default: 20)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to draw it (default: RUN/dictionary.png)")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object instead")
    return parser


def _episodes(path: Path, tasks: Sequence[Task], iteration: int | None) -> tuple[Path | None, list[Trajectory]]:
    """The recorded episodes of an iteration, successes first, and one of each task before a second; none where none is kept."""
    files = recorded_steps(path)
    if iteration is not None and iteration not in files:
        there = f"there are {min(files)} to {max(files)}" if files else "there are none"
        raise TacitError(f"iteration {iteration} is not recorded in {path}; {there}.")
    if not files:
        return None, []
    file = files[max(files) if iteration is None else iteration]
    before: Counter[tuple[str, bool]] = Counter()
    places = []
    for trajectory in (played := replay(file, tasks)):
        places.append((not trajectory.success, before[trajectory.task.id, trajectory.success]))
        before[trajectory.task.id, trajectory.success] += 1
    return file, [played[i] for i in sorted(range(len(played)), key=places.__getitem__)]


def _behaviours(
    path: Path, recipe: Recipe, world: Environment, file: Path | None, episodes: list[Trajectory]
) -> dict[str, Behaviour]:
    """Of the iteration shown, and of the last evaluation of practice, where they are recorded."""
    found = {}
    if file is not None:
        found[f"training, iteration {int(file.name[3:9])}"] = _told(episodes, world)
    evaluations = recorded_steps(path, "eval-rl")
    if evaluations:
        step, chosen = max(evaluations), recipe.train.evaluation
        panel = Panel.of(world, chosen.split, chosen.tasks)
        found[f"evaluation after rl {step}"] = _told(replay(evaluations[step], panel.tasks), world)
    return found


def _told(episodes: list[Trajectory], world: Environment) -> Behaviour:
    return behaviour(episodes, world.alphabet, world.failure, world.place)
