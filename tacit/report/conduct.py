"""How the policy behaved: lengths, wasted steps, why it failed, and how much it had to read as episodes went on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from markupsafe import Markup

from tacit.core.amounts import number_of
from tacit.core.types import Step, Trajectory
from tacit.evaluation.behaviour import Behaviour, behaviour, ending_in_words
from tacit.evaluation.pictures import Point, Series
from tacit.report.charts import draw
from tacit.report.known import Known
from tacit.report.numbers import NOTHING, count, is_number, percent, plain, short
from tacit.report.run_files import Episodes, Record, trajectory_of

Shown = Callable[[Any], str]
STATISTICS: tuple[tuple[str, str, Shown], ...] = (
    ("episodes", "episodes", count),
    ("successes", "successes", count),
    ("steps of a success", "success_length", plain),
    ("steps of a failure", "failure_length", plain),
    ("in successes: steps invalid or refused", "invalid", percent),
    ("in successes: steps repeating an action", "repeats", percent),
    ("in successes: places visited again", "revisits", plain),
    ("different operators in a success", "operators_per_success", plain),
    ("of all steps: repeats an action", "all_repeats", percent),
)
"""(what it is called, the field of Behaviour, how it is shown)"""
OF_ALL_STEPS: dict[str, Callable[[Step], bool]] = {
    "of all steps: completion does not parse": lambda step: not step.valid,
    "of all steps: action refused by the world": lambda step: step.valid and not step.effective,
}
BY_NAME: tuple[tuple[str, str, str, Shown], ...] = (
    ("why episodes failed", "share of the failures", "failures", percent),
    ("skills per success", "", "per_success", lambda value: plain(value, 2)),
    ("successes without", "", "without", percent),
    ("operators", "share of the operations of successes", "operators", percent),
    ("last skill", "successes that end with it", "closings", count),
)
"""tables with a row for each name: (title, caption, field, how it is shown)"""


def conduct(found: Sequence[Episodes], known: Known, notices: list[str]) -> dict[str, Any]:
    """A column per file of episodes: what the page shows of them."""
    tasks = {name: scene.task for name, scene in known.scenes.items()}
    played = [[trajectory_of(record, tasks.get(record["task"])) for record in episodes.records] for episodes in found]
    told = [_behaviour(trajectories, known, notices) for trajectories in played]
    rows = []
    for name, field, show in STATISTICS:
        values = [getattr(b, field) for b in told]
        rows += [[name, *map(show, values)]] if any(value is not None for value in values) else []
    for name, flag in OF_ALL_STEPS.items():
        flags = [[flag(step) for t in trajectories for step in t.steps] for trajectories in played]
        rows.append([name, *(percent(sum(own) / len(own) if own else None) for own in flags)])
    tables = []
    for title, caption, field, show in BY_NAME:
        columns: list[Mapping[str, Any]] = [getattr(b, field) for b in told]
        names = sorted({name for column in columns for name in column})
        body = [[ending_in_words(n), *(show(c.get(n, 0)) if c else NOTHING for c in columns)] for n in names]
        tables.append((title, caption, body))
    return {"titles": [episodes.title for episodes in found], "rows": rows, "failures": tables[0], "skills": tables[1:]}


def by_world(found: Sequence[Episodes], known: Known) -> list[Episodes]:
    """Episodes of several worlds in one file are several files."""
    parted: list[Episodes] = []
    for episodes in found:
        worlds: dict[str, list[Record]] = {}
        for record in episodes.records:
            scene = known.scenes.get(record["task"])
            worlds.setdefault(scene.world.name if scene else "elsewhere", []).append(record)
        named = [replace(episodes, records=own, name=f"{episodes.title}, {world}") for world, own in worlds.items()]
        parted += named if len(named) > 1 else [episodes]
    return parted


def reading_load(found: Sequence[Episodes]) -> list[Markup]:
    """Prompt tokens by turn, a chart for each file of episodes."""
    charts = []
    for episodes in found:
        series = prompt_series(episodes)
        if len(series.points) > 1:
            begun, last = sum(bool(r["turns"]) for r in episodes.records), series.points[-1].x
            left = sum(len(r["turns"]) >= last for r in episodes.records)
            came = f"of {number_of(begun, 'episode')} {left} came to turn {short(last)}"
            said = f"{episodes.title}: {came}; line: mean; band: middle 80%"
            charts.append(draw("Prompt tokens by turn", [series], "turn", note=said, floor=0.0))
    return charts


def prompt_series(episodes: Episodes) -> Series:
    """Mean and the middle 80% of the episodes that came that far."""
    columns = zip_longest(*([turn.get("prompt_tokens") for turn in record["turns"]] for record in episodes.records))
    read = [[tokens for tokens in column if is_number(tokens)] for column in columns]
    middle = [(turn, np.mean(own), *np.percentile(own, (10, 90))) for turn, own in enumerate(read, start=1) if own]
    return Series(episodes.title, [Point(turn, *map(float, values)) for turn, *values in middle])


def _behaviour(played: Sequence[Trajectory], known: Known, notices: list[str]) -> Behaviour:
    """With the world's own labels and skills, where the world is here and knows these tasks."""
    scenes = [scene for t in played if (scene := known.scenes.get(t.task.id))]
    if scenes and len(scenes) == len(played):
        try:
            world = scenes[0].world
            return behaviour(played, world.alphabet, world.failure, world.place)
        except Exception as error:  # a world of the user's own, over episodes that another version of it may have recorded
            why = f"{type(error).__name__}: {error}"
            notices.append(f"The world could not label these episodes ({why}); their endings are shown.")
    elif known.scenes and played:
        why = "its version has changed, so failures are not labelled"
        notices.append(f"Some recorded tasks are not this world's any more: {why}.")
    return behaviour(played)
