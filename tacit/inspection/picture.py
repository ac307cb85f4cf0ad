"""A picture of a dictionary's life: which phrases were in it when and how much they were used, and what that saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.companions.dictionary.segmentation import Phrase
from tacit.inspection.story import Reading, Story
from tacit.runs.files import disk_errors

SHOWN = 24
"""phrases drawn: those used most over all iterations"""
ARROW = " → "


def plot_dictionary(file: Path, title: str, story: Story) -> None:
    """Three pictures over the same iterations: uses of each phrase as a map, bits per success in their parts, the bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    rates, readings, phrases = story.rates(), story.readings(), by_appearance(story)
    heights = [0.5 + 0.24 * max(3, len(phrases)), 2.2, 1.6]
    figure, (above, middle, below) = pyplot.subplots(
        3, 1, figsize=(11, sum(heights) + 1.0), sharex=True, layout="constrained", height_ratios=heights
    )
    above.set_title(
        f"{title}: {'phrases in order of appearance (grey: gone by the end)' if phrases else 'no phrase was merged'}"
    )
    if phrases:
        _map(figure, above, phrases, rates)
    _bits(middle, readings)
    _bound(below, readings)
    below.set_xlabel("iteration")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    with disk_errors(file):
        figure.savefig(file, dpi=110)
    pyplot.close(figure)


def by_appearance(story: Story) -> list[Phrase]:
    """The phrases used most over all iterations, the first to come first, of equals the first to go."""
    lives = story.lives()
    return sorted(list(lives)[:SHOWN], key=lambda p: (min(lives[p]), max(lives[p]), len(lives[p]), p))


def _map(figure: Any, axes: Any, phrases: Sequence[Phrase], rates: Sequence[tuple[int, Mapping[Phrase, float]]]) -> None:
    first, last = rates[0][0], rates[-1][0]
    map_PS = np.full((len(phrases), last - first + 1), np.nan)  # iterations without a success stay blank
    for step, uses in rates:
        map_PS[:, step - first] = [uses.get(phrase, np.nan) for phrase in phrases]
    edges = np.arange(first, last + 2) - 0.5
    image = axes.pcolormesh(edges, np.arange(len(phrases) + 1), map_PS, cmap="viridis_r", vmin=0)
    figure.colorbar(image, ax=axes, label="uses per success", pad=0.01, aspect=40)
    axes.set_yticks(np.arange(len(phrases)) + 0.5, [ARROW.join(p) for p in phrases], fontsize=7)
    for label, phrase in zip(axes.get_yticklabels(), phrases, strict=True):
        if phrase not in rates[-1][1]:
            label.set_color("0.6")  # gone by the end
    axes.invert_yaxis()


def _bits(axes: Any, readings: Sequence[Reading]) -> None:
    """Eq. 3 as bars in its two parts; the line is what single skills would take, and the gap between what reuse saves."""
    steps, shared = [r.step for r in readings], [r.shared for r in readings]
    axes.bar(steps, shared, width=0.9, color="tab:gray", label="share in the dictionary")
    axes.bar(steps, [r.bits - r.shared for r in readings], 0.9, shared, color="tab:blue", label="segments")
    axes.plot(steps, [r.single for r in readings], "k--", marker="." if len(steps) < 30 else None, label="skill by skill")
    axes.set_ylabel("bits per success")
    _legend(axes)


def _bound(axes: Any, readings: Sequence[Reading]) -> None:
    known = [(r.step, r.loss, r.bound) for r in readings if r.bound is not None]
    if known:
        steps, losses, bounds = zip(*known, strict=True)
        marker = "." if len(known) < 30 else None
        axes.plot(steps, bounds, color="tab:red", marker=marker, label="bound (Theorem 3)")
        axes.plot(steps, losses, color="tab:orange", marker=marker, label="loss")
        axes.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":", label="1: no loss is higher")
    axes.set_ylabel("normalised")
    _legend(axes)


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend above what it explains
        axes.legend(fontsize=8, loc="upper center", ncol=3, frameon=False)
