"""What contexts cost as a picture: a context that does not grow is flat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.evaluation.tokens import UNLISTED, TokenUse
from tacit.runs.files import disk_errors


def plot_tokens(file: Path, title: str, uses: Sequence[TokenUse]) -> None:
    """Mean prompt tokens against the turn, one line per context, and how many episodes got there."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(8, 5.5), sharex=True, layout="constrained", height_ratios=[4.0, 1.0]
    )
    for use in uses:
        turns = use.by_turn()
        above.plot(
            [t for t, _, _ in turns],
            [tokens for _, tokens, _ in turns],
            label=use.context,
            marker=".",
            linestyle=_line(use.context),
        )
    above.set_ylim(bottom=0)
    above.set_ylabel("prompt tokens, mean")
    above.set_title(title)
    if uses:
        above.legend()
        reached = uses[0].by_turn()
        below.bar([t for t, _, _ in reached], [n for _, _, n in reached], width=0.8, color="tab:gray")
    below.set_ylabel("episodes")
    below.set_xlabel("turn")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    with disk_errors(file):
        figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _line(context: str) -> str:
    return "--" if context.endswith(UNLISTED) else "-"
