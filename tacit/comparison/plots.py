"""Pictures of a comparison: learning curves, when each seed first reached a threshold, and numbers of practice the file
asks for. PNG and SVG, one pair per world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.core.amounts import number_of
from tacit.evaluation.pictures import PLAIN, Arrivals, draw_arrivals, draw_lines, mean_series, name_ends

Found = dict[str, Any]
SPANS = 10
"""a curve of practice has so many points"""


def draw(found: Found, directory: Path) -> list[Path]:
    """The files drawn. A world none of whose runs has a curve yet is left out."""
    import matplotlib

    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    # Ids in an SVG are random unless salted: the same comparison gives the same file.
    dress = PLAIN | {"svg.hashsalt": "tacit", "font.size": 9, "grid.alpha": 0.25}
    dress |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(dress):
        for world in found["worlds"]:
            cells = [c for c in found["cells"] if c["world"] == world and c["status"] == "finished" and len(c["curve"]) > 1]
            for kind, figure in _pictures(found, world, cells) if cells else ():
                for suffix, more in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
                    drawn.append(directory / f"{kind}-{world}{suffix}")
                    figure.savefig(drawn[-1], **more)
    return drawn


def _pictures(found: Found, world: str, cells: Sequence[Found]) -> Iterator[tuple[str, Any]]:
    from matplotlib.figure import Figure

    methods = [(i, method) for i, method in enumerate(found["methods"]) if any(c["method"] == method for c in cells)]
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    curves = [[{p["step"]: 100 * p["success"] for p in c["curve"]} for c in cells if c["method"] == m] for _, m in methods]
    series = [s for (i, m), own in zip(methods, curves, strict=True) if (s := mean_series(m, own, i)).points]
    draw_lines(axes, series, marks=True)
    seeds = len({c["seed"] for c in cells})
    told = f"{world}: mean of {number_of(seeds, 'seed')}; each seed thin"
    axes.set(xlabel="iteration", ylabel="success on the panel, %", title=told)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(axis="y")
    name_ends(axes, [replace(s, name=f"{s.name}  {s.points[-1].y:.1f}") for s in series], 0.055)
    yield "learning", figure

    for name in found.get("metrics", ()):
        by_method = [[in_spans(c["practice"][name]) for c in cells if c["method"] == m] for _, m in methods]
        drawn = [s for (i, m), own in zip(methods, by_method, strict=True) if (s := mean_series(m, own, i)).points]
        if drawn:
            figure = Figure(figsize=(7.2, 4.2), layout="constrained")
            axes = figure.subplots()
            draw_lines(axes, drawn, marks=True)
            axes.set(xlabel="iteration", ylabel=name, title=f"{world}: in practice, means of {SPANS} spans of iterations")
            axes.grid(axis="y")
            name_ends(axes, [replace(s, name=f"{s.name}  {s.points[-1].y:.2f}") for s in drawn], 0.055)
            yield name.replace("/", "-"), figure

    thresholds = found["thresholds"]
    if thresholds:
        figure = Figure(figsize=(2.4 + 2.3 * len(thresholds), 1.3 + 0.42 * len(methods)), layout="constrained")
        last = max(p["step"] for c in cells for p in c["curve"])
        for which, axes in enumerate(figure.subplots(1, len(thresholds), sharey=True, squeeze=False)[0]):
            steps = {m: [c["steps_to"][which]["step"] for c in cells if c["method"] == m] for _, m in methods}
            draw_arrivals(axes, [Arrivals(m, steps[m], i) for i, m in methods], last)
            axes.set(title=f"≥ {100 * thresholds[which]:g}%", xlabel="iteration")
        figure.suptitle(f"{world}: first evaluation at or above a success rate, one dot per seed", fontsize=9)
        yield "thresholds", figure


def in_spans(told: Sequence[Sequence[float]]) -> dict[float, float]:
    """Means over equal spans of iterations, each at its last: one iteration alone says little, and not every one tells all."""
    last = max((step for step, _ in told), default=0)
    length = -(-last // SPANS) or 1
    spans: dict[float, list[float]] = {}
    for step, value in told:
        spans.setdefault(length * -(-step // length), []).append(value)
    return {step: sum(own) / len(own) for step, own in sorted(spans.items())}
