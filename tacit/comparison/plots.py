"""Pictures of a comparison: learning curves, and when each seed first reached a threshold. PNG and SVG, one pair per world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Found = dict[str, Any]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8588f", "#a87500", "#3a95cf", "#000000", "#7a5c1e")
"""after Okabe and Ito, told apart by colour-blind readers too, and dark enough for words"""
STYLES = ("-", "--", "-.", ":")


def draw(found: Found, directory: Path) -> list[Path]:
    """The files drawn. A world none of whose runs has a curve yet is left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    # Ids in an SVG are random unless salted (the same comparison gives the same file); its words stay words.
    plain: dict[Any, Any] = {"svg.hashsalt": "tacit", "svg.fonttype": "none", "font.size": 9}
    plain |= {"axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(plain):
        for world in found["worlds"]:
            cells = [c for c in found["cells"] if c["world"] == world and c["status"] == "finished" and len(c["curve"]) > 1]
            if not cells:
                continue
            pictures = {"learning": _learning(pyplot, found, world, cells)}
            if found["thresholds"]:
                pictures["thresholds"] = _thresholds(pyplot, found, world, cells)
            for kind, figure in pictures.items():
                for suffix, more in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
                    path = directory / f"{kind}-{world}{suffix}"
                    figure.savefig(path, **more)
                    drawn.append(path)
                pyplot.close(figure)
    return drawn


def _learning(pyplot: Any, found: Found, world: str, cells: Sequence[Found]) -> Any:
    """Mean over seeds in bold, every seed thin behind it; the method's name at the end of its line."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    ends = []
    for i, method in enumerate(found["methods"]):
        curves = [{p["step"]: p["success"] for p in c["curve"]} for c in cells if c["method"] == method]
        if not curves:
            continue
        colour, style = look(i)
        for curve in curves:
            axes.plot(list(curve), [100 * v for v in curve.values()], color=colour, linewidth=0.7, alpha=0.35)
        steps = sorted(set.intersection(*map(set, curves)))
        means = [100 * float(np.mean([c[s] for c in curves])) for s in steps]
        axes.plot(steps, means, style, color=colour, linewidth=2.2, marker="o", markersize=3.5)
        ends.append((means[-1], f"{method}  {means[-1]:.1f}", colour))
    axes.set(xlabel="iteration", ylabel="success on the panel, %", title=f"{world}: mean of {_seeds(cells)}, each seed thin")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    low, high = axes.get_ylim()
    for (_, text, colour), y in zip(ends, apart([e[0] for e in ends], 0.055 * (high - low)), strict=True):
        axes.annotate(
            text, (1.01, y), xycoords=("axes fraction", "data"), color=colour, va="center", annotation_clip=False, weight="bold"
        )
    axes.grid(axis="y", alpha=0.25)
    return figure


def _thresholds(pyplot: Any, found: Found, world: str, cells: Sequence[Found]) -> Any:
    """A dot for each seed at the iteration it first reached the threshold; hollow beyond the line where it never did."""
    thresholds, methods = found["thresholds"], [m for m in found["methods"] if any(c["method"] == m for c in cells)]
    size = (2.4 + 2.3 * len(thresholds), 1.3 + 0.42 * len(methods))
    figure, panels = pyplot.subplots(1, len(thresholds), figsize=size, layout="constrained", sharey=True, squeeze=False)
    last = max(p["step"] for c in cells for p in c["curve"])
    never = last * 1.24
    for axes, (which, threshold) in zip(panels[0], enumerate(thresholds), strict=True):
        for row, method in enumerate(methods):
            colour, _ = look(found["methods"].index(method))
            steps = [c["steps_to"][which]["step"] for c in cells if c["method"] == method]
            spread = np.linspace(-0.22, 0.22, len(steps)) if len(steps) > 1 else [0.0]
            for step, shift in zip(steps, spread, strict=True):
                axes.plot(
                    never if step is None else step, row + shift, "o", color=colour, markersize=5,
                    markerfacecolor="none" if step is None else colour,
                )  # fmt: skip
        axes.axvline(last * 1.11, color="grey", linewidth=0.8, linestyle=":")
        axes.set(
            title=f"≥ {100 * threshold:g}%",
            xlabel="iteration",
            xlim=(-0.04 * last, last * 1.38),
            ylim=(len(methods) - 0.5, -0.5),
        )
        ticks = [t for t in axes.get_xticks() if 0 <= t <= last]
        axes.set_xticks([*ticks, never], [*(f"{t:g}" for t in ticks), "never"])
        axes.grid(axis="x", alpha=0.25)
    panels[0][0].set_yticks(range(len(methods)), methods)
    figure.suptitle(f"{world}: first evaluation at or above a success rate, one dot per seed", fontsize=9)
    return figure


def look(index: int) -> tuple[str, str]:
    """Colour and line style of the n-th method; past the colours, another style."""
    return COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights for labels, in the same order, moved as little up as keeps them `gap` apart.

    >>> apart([10.0, 10.0, 50.0], 5.0)
    [10.0, 15.0, 50.0]
    """
    placed = list(heights)
    below = -float("inf")
    for i in sorted(range(len(heights)), key=lambda i: heights[i]):
        placed[i] = below = max(heights[i], below + gap)
    return placed


def _seeds(cells: Sequence[Found]) -> str:
    count = len({c["seed"] for c in cells})
    return f"{count} seed" + ("s" if count > 1 else "")
