"""How the policy behaved: lengths, wasted steps, why it failed, alarms, and how much it had to read as episodes went on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tacit.core.types import Task, Trajectory
from tacit.evaluation.behaviour import Behaviour, behaviour
from tacit.report.charts import Chart, Point, Series, draw, side_by_side
from tacit.report.known import Known
from tacit.report.markup import Child, Markup, join, tag
from tacit.report.numbers import NOTHING, count, is_number, percent, plain, short
from tacit.report.run_files import Episodes, Record, RunFiles
from tacit.report.tables import Column, folded, table
from tacit.runs.replay import trajectory_from_record

Shown = Callable[[Any], str]
STATISTICS: tuple[tuple[str, Callable[[Behaviour], Any], Shown], ...] = (
    ("episodes", lambda b: b.episodes, count),
    ("successes", lambda b: b.successes, count),
    ("steps of a success", lambda b: b.success_length, plain),
    ("steps of a failure", lambda b: b.failure_length, plain),
    ("in successes: steps invalid or refused", lambda b: b.invalid, percent),
    ("in successes: steps repeating an action", lambda b: b.repeats, percent),
    ("in successes: places visited again", lambda b: b.revisits, plain),
    ("different operators in a success", lambda b: b.operators_per_success, plain),
    ("of all steps: repeats an action", lambda b: b.all_repeats, percent),
)


def conduct(found: Sequence[Episodes], known: Known, notices: list[str]) -> Markup:
    """One column per file of episodes."""
    if not found:
        return tag("p", "No trajectories were recorded, so behaviour cannot be told.", cls="quiet")
    played = [_trajectories(episodes, known, notices) for episodes in found]
    told = [_behaviour(trajectories, known, notices) for trajectories in played]
    titles = [Column(episodes.title) for episodes in found]
    rows: list[list[Child]] = []
    for name, read, show in STATISTICS:
        if any(read(b) is not None for b in told):
            rows.append([name, *(show(read(b)) for b in told)])
    rows += [[name, *(percent(share(t)) for t in played)] for name, share in _OF_ALL_STEPS]
    parts: list[Child] = [table([Column("behaviour", False), *titles], rows)]
    parts.append(_shares("why episodes failed", [b.failures for b in told], titles, percent, "share of the failures"))
    skills = [
        _shares("skills per success", [b.per_success for b in told], titles, lambda v: plain(v, 2)),
        _shares("successes without", [b.without for b in told], titles, percent),
        _shares("operators", [b.operators for b in told], titles, percent, "share of the operations of successes"),
        _shares("last skill", [b.closings for b in told], titles, count, "successes that end with it"),
    ]
    if any(skills):
        parts.append(folded("Skills of successes", skills))
    return join(parts)


def reading_load(found: Sequence[Episodes]) -> Markup | None:
    """Prompt tokens by turn, a chart for each file of episodes."""
    charts = []
    for episodes in found:
        series = prompt_series(episodes)
        if len(series.points) > 1:
            begun, last = sum(bool(r["turns"]) for r in episodes.records), series.points[-1].x
            left = sum(len(r["turns"]) >= last for r in episodes.records)
            said = f"{episodes.title}: {begun} episodes begin, {left} reach turn {short(last)}"
            chart = Chart("Prompt tokens by turn", [series], "turn", band=said, note="line: mean; band: middle 80%", floor=0.0)
            charts.append(draw(chart))
    return side_by_side(charts) if charts else None


def prompt_series(episodes: Episodes, colour: int = 0) -> Series:
    """Mean and the middle 80% of the episodes that came that far."""
    columns: dict[int, list[float]] = {}
    for record in episodes.records:
        for turn, step in enumerate(record["turns"], start=1):
            if is_number(step.get("prompt_tokens")):
                columns.setdefault(turn, []).append(step["prompt_tokens"])
    return Series(episodes.title, [_middle(turn, values) for turn, values in sorted(columns.items())], colour)


def alarms(run: RunFiles) -> Markup | None:
    """Signs of collapse while practising; None where there were none."""
    if not run.alarms:
        return None
    rows = [[count(alarm.step), alarm.name.replace("_", " "), alarm.message] for alarm in run.alarms]
    columns = [Column("iteration"), Column("alarm", False), Column("what it means", False)]
    return table(columns, rows, "Signs of a collapsing policy, each at the iteration it first rang")


def _trajectories(episodes: Episodes, known: Known, notices: list[str]) -> list[Trajectory]:
    made, strange = [], set()
    for record in episodes.records:
        complete = {"score": 0.0, "saw": "", "condition": "plain", "detail": "", "seed": 0, **record}
        complete["turns"] = [{"effective": True, **turn} for turn in record["turns"]]
        try:
            made.append(trajectory_from_record(complete, _task(record, known)))
        except (ValueError, TypeError, KeyError) as error:  # a stop reason this version does not have, a count that is none
            strange.add(str(error))
    if strange:
        lost = len(episodes.records) - len(made)
        notices.append(
            f"{lost} episodes of {episodes.title} are told in a way this version does not know ({'; '.join(sorted(strange))}): "
            "they are not among the behaviour statistics."
        )
    return made


def _task(record: Record, known: Known) -> Task:
    stub = Task("", record["task"], str(record.get("family", "")), "", 0, str(record.get("goal", "")))
    return known.tasks.get(record["task"], stub)


def _behaviour(played: Sequence[Trajectory], known: Known, notices: list[str]) -> Behaviour:
    """With the world's own labels and skills, where the world is here and knows these tasks."""
    world = known.world
    if world is not None and all(t.task.id in known.tasks for t in played):
        try:
            return behaviour(played, world.alphabet, world.failure, world.place)
        except Exception as error:  # a world of the user's own, over episodes that another version of it may have recorded
            notices.append(
                f"The world could not label these episodes ({type(error).__name__}: {error}); their endings are shown."
            )
    elif world is not None:
        notices.append(
            "Some recorded tasks are not this world's any more: its version has changed, so failures are not labelled."
        )
    return behaviour(played)


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


_OF_ALL_STEPS: tuple[tuple[str, Callable[[Sequence[Trajectory]], float | None]], ...] = (
    ("of all steps: completion does not parse", lambda ts: _share([not s.valid for t in ts for s in t.steps])),
    (
        "of all steps: action refused by the world",
        lambda ts: _share([s.valid and not s.effective for t in ts for s in t.steps]),
    ),
)


def _shares(
    title: str, columns: Sequence[Mapping[str, Any]], titles: Sequence[Column], show: Shown, caption: str = ""
) -> Markup | None:
    names = sorted({name for column in columns for name in column})
    if not names:
        return None
    rows = [
        [name.replace("_", " "), *(show(column.get(name, 0)) if column else NOTHING for column in columns)] for name in names
    ]
    return table([Column(title, False), *titles], rows, caption or None)


def _middle(turn: int, values: Sequence[float]) -> Point:
    ordered = sorted(values)
    low, high = ordered[int(0.1 * (len(ordered) - 1))], ordered[-int(0.1 * (len(ordered) - 1)) - 1]
    return Point(turn, sum(ordered) / len(ordered), low, high)
