"""Learning curves: the panel with its intervals first, then what practice and imitation recorded at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.report.charts import Chart, Point, Series, draw, side_by_side
from tacit.report.markup import Child, Markup, join, tag
from tacit.report.measures import interval_of, success_of
from tacit.report.numbers import is_number, short
from tacit.report.run_files import Record, RunFiles
from tacit.report.tables import Column, folded, table

STAGE_TITLES = {"rl": "Practice", "sft": "Imitation"}
STEP_WORDS = {"rl": "iteration", "sft": "step"}
NOT_CURVES = ("stage", "step", "at")
MOST_ROWS = 200
"""of a table of values; more are thinned to every n-th"""


@dataclass(frozen=True)
class Reading:
    """A metric worth a chart of its own."""

    name: str
    title: str
    share: bool = False
    floor: float | None = None


READINGS = (
    Reading("success", "Success while practising", share=True),
    Reading("reward", "Reward per episode"),
    Reading("loss", "Loss"),
    Reading("entropy", "Entropy, nats/token", floor=0.0),
    Reading("kl", "KL to the reference, nats/token"),
    Reading("old_kl", "KL to the sampler, nats/token"),
    Reading("steps", "Turns per episode", floor=0.0),
    Reading("completion_tokens", "Tokens written per turn", floor=0.0),
    Reading("prompt_tokens", "Tokens read per turn", floor=0.0),
    Reading("valid", "Completions that parse", share=True),
    Reading("effective", "Actions the world accepts", share=True),
    Reading("repeated", "Actions taken before in the episode", share=True),
    Reading("mixed_groups", "Groups with both outcomes", share=True),
    Reading("clipped", "Tokens clipped", share=True),
    Reading("grad_norm", "Gradient norm", floor=0.0),
)


def curves(run: RunFiles) -> Markup:
    parts: list[Child] = []
    panel = panel_chart(run.evaluations)
    for stage in sorted({r["stage"] for r in run.metrics}, key=lambda s: (s != "rl", s)):
        records = [r for r in run.metrics if r["stage"] == stage]
        parts.append(tag("h3", STAGE_TITLES.get(stage, stage)))
        parts.append(_stage(stage, records, [panel] if panel and stage == "rl" else []))
    if panel and not any(r["stage"] == "rl" for r in run.metrics):
        parts.insert(0, side_by_side([panel]))
    return join(parts) if parts else tag("p", "No metrics were recorded.", cls="quiet")


def panel_chart(evaluations: Sequence[Record]) -> Markup | None:
    """Success on the panel over practice; the last measurement before it stands at iteration 0."""
    before = [e for e in evaluations if e.get("stage") != "rl"][-1:]
    practised = [e for e in evaluations if e.get("stage") == "rl" and is_number(e.get("step"))]
    points = [Point(0 if e.get("stage") != "rl" else e["step"], success_of(e), *interval_of(e)) for e in [*before, *practised]]
    if len(points) < 2:
        return None
    chart = Chart("Success on the panel", [Series("success", points)], share=True, band="band: 95% interval", marks=True)
    return draw(chart)


def series_of(records: Sequence[Record], name: str) -> list[Point]:
    return [Point(r["step"], r[name]) for r in records if is_number(r.get(name))]


def _stage(stage: str, records: Sequence[Record], first: Sequence[Markup]) -> Markup:
    names = list(dict.fromkeys(name for r in records for name in r if name not in NOT_CURVES))
    points = {name: found for name in names if (found := series_of(records, name))}
    told = {r.name: r for r in READINGS}
    main = [r for r in READINGS if r.name in points and not _flat(points[r.name])]
    rest = [name for name in points if name not in told and not _flat(points[name])]
    still = [f"{name} {short(found[0].y)}" for name, found in points.items() if _flat(found)]
    word = STEP_WORDS.get(stage, "step")
    charts = [draw(Chart(r.title, [Series(r.name, points[r.name])], word, r.share, floor=r.floor)) for r in main]
    others = [draw(Chart(name, [Series(name, points[name])], word)) for name in rest]
    parts: list[Child] = [side_by_side([*first, *charts])]
    if still:
        parts.append(tag("p", "The same at every step, so not drawn: " + ", ".join(still) + ".", cls="quiet"))
    if others:
        parts.append(folded(f"{len(others)} more recorded numbers", side_by_side(others)))
    if points:
        parts.append(folded(f"Values of every {word} as a table", _values(records, list(points), word)))
    return join(parts)


def _flat(points: Sequence[Point]) -> bool:
    return len(points) > 1 and all(p.y == points[0].y for p in points)


def _values(records: Sequence[Record], names: Sequence[str], word: str) -> Markup:
    every = -(-len(records) // MOST_ROWS)
    chosen = [r for i, r in enumerate(records) if i % every == 0 or i == len(records) - 1]
    caption = f"Every {every}th {word} and the last; metrics.jsonl has all {len(records)}." if every > 1 else None
    return table(
        [Column(word), *(Column(name) for name in names)],
        [[short(r["step"]), *(short(r.get(name)) for name in names)] for r in chosen],
        caption,
    )
