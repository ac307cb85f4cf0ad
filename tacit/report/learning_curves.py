"""Learning curves: the panel with its intervals first, then what practice and imitation recorded at every step.

A run in several worlds records some numbers once for each of them, as `WORLD/success`: these are lines of one chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tacit.evaluation.pictures import COLOURS, Point, Series
from tacit.report.charts import draw
from tacit.report.experience import experience_charts
from tacit.report.measures import Panel
from tacit.report.numbers import is_number, short
from tacit.report.run_files import Record
from tacit.report.skill_shift import skill_charts
from tacit.report.step_credit import run_charts

STAGE_TITLES = {"rl": "Practice", "sft": "Imitation"}
NOT_CURVES = ("stage", "step", "at")
MOST_ROWS = 200
"""of a table of values; more are thinned to every n-th"""
ALL, LAST = "all", len(COLOURS) - 1
"""the line of the whole run, beside those of its worlds or phases, and its colour there: grey"""
PHASE, WHOLE = "seconds_", "seconds"
"""how long the phases of an iteration took, and all of it"""
SHARE, FROM_ZERO = {"share": True}, {"floor": 0.0}
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "success": ("Success while practising", SHARE),
    "reward": ("Reward per episode", {}),
    "loss": ("Loss", {}),
    "entropy": ("Entropy, nats/token", FROM_ZERO),
    "reference_kl": ("KL to the reference, nats/token", {}),
    "old_kl": ("KL to the sampler, nats/token", {}),
    "steps": ("Turns per episode", FROM_ZERO),
    "completion_tokens": ("Tokens written per turn", FROM_ZERO),
    "prompt_tokens": ("Tokens read per turn", FROM_ZERO),
    "valid": ("Completions that parse", SHARE),
    "effective": ("Actions the world accepts", SHARE),
    "repeated": ("Actions taken before in the episode", SHARE),
    "mixed_groups": ("Groups with both outcomes", SHARE),
    "clipped": ("Tokens clipped", SHARE),
    "relabel_agreement": ("Turns in which the expert would have done the same", SHARE),
    "relabel_success": ("Success in the episodes that were relabelled", SHARE),
    "grad_norm": ("Gradient norm", FROM_ZERO),
}
"""metrics worth a chart of their own: (title, what kind of scale it has)"""


def stages_of(metrics: Sequence[Record], panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Practice first. The panel's chart stands with it, or alone where nothing was recorded of practice."""
    panel = panel_chart([panel for panel in panels if panel.training])
    names = sorted({r["stage"] for r in metrics} | ({"rl"} if panel else set()), key=lambda name: (name != "rl", name))
    return [
        _stage(name, [r for r in metrics if r["stage"] == name], [panel] if panel and name == "rl" else []) for name in names
    ]


def panel_chart(panels: Sequence[Panel]) -> Markup | None:
    """Success on each panel over practice; the last measurement before it stands at iteration 0."""
    whole, apart = [panel for panel in panels if panel.worlds], [panel for panel in panels if not panel.worlds]
    lines = [Series(panel.name, measured_points(panel), colour) for colour, panel in enumerate(apart)]
    lines += [Series(ALL, measured_points(panel), LAST) for panel in whole]
    if max((len(line.points) for line in lines), default=0) < 2:
        return None
    return draw("Success on the panel", lines, share=True, note="band: 95% interval", marks=True)


def measured_points(panel: Panel) -> list[Point]:
    before = [(0, e) for e in panel.training if e.get("stage") != "rl"][-1:]
    practised = [(e["step"], e) for e in panel.training if e.get("stage") == "rl" and is_number(e.get("step"))]
    return [Point(x, e["success"], *e["interval"]) for x, e in [*before, *practised]]


def lines_of(records: Sequence[Record]) -> dict[str, list[Series]]:
    """By metric: a line for the run, and one for each of its worlds, which are those that have a success."""
    names = dict.fromkeys(name for r in records for name in r if name not in NOT_CURVES)
    worlds = [name.removesuffix("/success") for name in names if name.endswith("/success")]
    found: dict[str, list[Series]] = {}
    for name in names:
        colour, world = next(((i, w) for i, w in enumerate(worlds) if name.startswith(f"{w}/")), (LAST if worlds else 0, ""))
        points = [Point(r["step"], r[name]) for r in records if is_number(r.get(name))]
        if points:
            metric = name.removeprefix(f"{world}/") if world else name
            found.setdefault(metric, []).append(Series(world or ALL, points, colour))
    return found


def _stage(name: str, records: Sequence[Record], charts: list[Markup]) -> dict[str, Any]:
    """The charts of one stage, and its numbers as a table."""
    word, found = "iteration" if name == "rl" else "step", lines_of(records)
    phases = [metric for metric in found if metric.startswith(PHASE)]
    timed = {metric: found.pop(metric)[0].points for metric in [*phases, WHOLE] if phases and metric in found}
    compared = run_charts(found, word)
    experience, skilled = experience_charts(found, word), skill_charts(found, word)
    still = {metric: found.pop(metric) for metric in list(found) if all(map(_flat, found[metric]))}
    for metric, (title, scale) in READINGS.items():
        if metric in found:
            charts.append(draw(title, found.pop(metric), word, **scale))
    if timed:
        lines = [Series(metric.removeprefix(PHASE), timed[metric], i) for i, metric in enumerate(phases)]
        lines += [Series(ALL, timed[WHOLE], LAST)] if WHOLE in timed else []
        charts.append(draw("Seconds of each phase", lines, word, floor=0.0))
    unmoved = [(m if s.name == ALL else f"{s.name}/{m}", s.points[0].y) for m, lines in still.items() for s in lines]
    every = -(-len(records) // MOST_ROWS)
    return {
        "title": STAGE_TITLES.get(name, name),
        "word": word,
        "charts": charts,
        "compared": compared,
        "experience": experience,
        "skilled": skilled,
        "others": [draw(metric, lines, word) for metric, lines in found.items()],
        "still": [f"{name} {short(value)}" for name, value in unmoved],
        "names": dict.fromkeys(name for r in records for name in r if name not in NOT_CURVES and is_number(r[name])),
        "rows": [r for i, r in enumerate(records) if i % every == 0 or i == len(records) - 1],
        "caption": f"Every {every}th {word} and the last; metrics.jsonl has all {len(records)}." if every > 1 else "",
    }


def _flat(line: Series) -> bool:
    return len(line.points) > 1 and all(p.y == line.points[0].y for p in line.points)
