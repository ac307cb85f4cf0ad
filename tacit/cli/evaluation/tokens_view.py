"""What a policy's context costs beside ReAct's, as a table and as a picture (`tacit eval RUN --tokens`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.core.errors import TacitError
from tacit.core.protocols import Scorer
from tacit.evaluation.tokens import TokenUse, as_played, count_tokens, joined, react_contexts
from tacit.runs.files import disk_errors

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.assembly.players import Target
    from tacit.core.types import Trajectory

OWN = "own context"


def check_tokens(target: Target) -> None:
    """Refused before anything is played: an expert reads no prompt, and an endpoint keeps its tokenizer to itself."""
    if not isinstance(target.policy, Scorer):
        raise TacitError(
            f"--tokens counts with a policy's own tokenizer, and {target.label!r} has none here; give a run or a model."
        )


def report_tokens(console: Console, target: Target, played: Sequence[Trajectory], picture: Path | None) -> list[dict[str, Any]]:
    """Count, show the table, draw the picture where there is a place for it; returns what goes into the result."""
    uses = token_uses(target, played)
    show_tokens(console, uses)
    if picture is not None:
        plot_tokens(picture, f"{target.label}: what is read at each turn", uses)
        print(f"drawn in {picture}")
    return [use.to_json() for use in uses]


def token_uses(target: Target, played: Sequence[Trajectory]) -> list[TokenUse]:
    """The target's own context, then ReAct-1step and ReAct-full in the same wording, on the episodes just played.

    Those that were read back from a recording are played again in the world, for the actions it listed. Where skill modules
    share the work, each one's episodes are told to its own context.
    """
    live = target.world.make()
    try:
        whole = [t if any(s.observation.actions for s in t.steps) else as_played(t, live) for t in played if not t.stop.crashed]
    finally:
        live.close()
    shares: dict[str, list[Trajectory]] = {}
    for trajectory in whole:
        shares.setdefault(target.route.name(trajectory.task), []).append(trajectory)
    parts = []
    for name, share in shares.items():
        context, policy = target.route.player(name)
        wording = getattr(context, "wording", None) or target.world.wording(target.recipe.settings.wording)
        parts.append(count_tokens(share, {OWN: context, **react_contexts(wording)}, policy))
    return [joined(uses) for uses in zip(*parts, strict=True)]


def show_tokens(console: Console, uses: Sequence[TokenUse]) -> None:
    from tacit.cli.terminal import say, table

    if not uses:
        say(console, "no episode to count tokens of: every world broke")
        return
    own = uses[0]
    columns = ("context", "prompt/turn", "longest", "growth/turn", "action/turn", "total/episode", "prompt ratio")
    rows = [
        (
            use.context,
            f"{use.per_turn:.1f}",
            str(use.longest),
            "–" if use.growth is None else f"{use.growth:+.2f}",
            f"{use.actions_per_turn:.1f}",
            f"{use.per_episode:.0f}",
            f"{use.per_turn / own.per_turn:.2f}×" if own.per_turn else "–",
        )
        for use in uses
    ]
    console.print()
    console.print(table(f"Tokens of the same {own.turns} turns", columns, rows, numbers=columns[1:]))
    say(console, "growth: mean change of a prompt from turn to turn; action: as the context has it written, without reasoning")


def plot_tokens(file: Path, title: str, uses: Sequence[TokenUse]) -> None:
    """Mean prompt tokens against the turn, one line per context: a context that does not grow is flat."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(8, 5.5), sharex=True, layout="constrained", height_ratios=[4.0, 1.0]
    )
    for use in uses:
        turns = use.by_turn()
        above.plot([t for t, _, _ in turns], [tokens for _, tokens, _ in turns], label=use.context, marker=".")
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
