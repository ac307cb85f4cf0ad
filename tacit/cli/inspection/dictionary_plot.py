"""A picture of a dictionary's life: which phrases were in it when and how much they were used, and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.companions.segmentation import Phrase, spell
from tacit.training.files import disk_errors

SHOWN = 24
"""phrases drawn: those used most over all steps"""


def plot_dictionary(
    file: Path, title: str, uses: Sequence[tuple[int, Mapping[Phrase, int]]], steps: Sequence[Mapping[str, Any]]
) -> None:
    """Uses of each phrase by step as a map, description length and bound beneath."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    total: Counter[Phrase] = Counter()
    for _, then in uses:
        total.update(then)
    phrases = sorted(total, key=lambda p: (-total[p], p))[:SHOWN]
    height = 3.0 + 0.24 * max(3, len(phrases))
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(11, height + 1.5), sharex=True, layout="constrained", height_ratios=[height - 2.0, 2.6]
    )
    numbers = [step for step, _ in uses]
    if phrases:
        map_PS = np.array([[then.get(phrase, np.nan) for _, then in uses] for phrase in phrases], float)
        edges = [*(number - 0.5 for number in numbers), numbers[-1] + 0.5]
        image = above.pcolormesh(edges, np.arange(len(phrases) + 1), map_PS, cmap="viridis", vmin=0)
        figure.colorbar(image, ax=above, label="uses in the corpus")
        above.set_yticks(np.arange(len(phrases)) + 0.5, [spell(p) for p in phrases], fontsize=7)
        above.invert_yaxis()
    above.set_title(f"{title}: merged phrases by iteration" if phrases else f"{title}: no phrase was merged")
    _curve(below, steps, "description_length", "bits per success (Eq. 3)", "tab:blue")
    below.set_xlabel("iteration")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.set_ylabel("bits per success", color="tab:blue")
    right = below.twinx()
    _curve(right, steps, "mdl_loss", "normalised loss", "tab:orange", "--")
    _curve(right, steps, "mdl_bound", "bound (Theorem 3)", "tab:red")
    right.set_ylabel("normalised", color="tab:red")
    lines = [*below.get_lines(), *right.get_lines()]
    if lines:
        below.legend(lines, [line.get_label() for line in lines], fontsize=8, loc="best")
    with disk_errors(file):
        figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _curve(axes: Any, steps: Sequence[Mapping[str, Any]], name: str, label: str, colour: str, style: str = "-") -> None:
    known = [(step["step"], step[name]) for step in steps if name in step]
    if known:
        axes.plot(*zip(*known, strict=True), style, label=label, color=colour, marker="." if len(known) < 30 else None)
