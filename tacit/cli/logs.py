"""Logs on the command line: how they are named, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tacit.assembly.flags import Parser
from tacit.cli.terminal import say, table
from tacit.core.amounts import number_of
from tacit.modules.logs import Coverage, Logs

MOST_LINES = 40
"""unusable lines that are printed; the report has all of them"""


def add_logs_flag(parser: Parser, what: str, required: bool = True) -> None:
    parser.add_argument(
        "--from",
        dest="logs",
        type=Path,
        action="append",
        required=required,
        metavar="LOGS",
        help=f"{what}: a file of JSON lines (.jsonl, .jsonl.gz) or a directory of them; may be given several times",
    )


def show_logs(console: Console, logs: Logs, covered: Sequence[Coverage], report: Path | None = None) -> None:
    """Every line that cannot be used with its reason, then how much there is of each family."""
    for line in logs.unusable[:MOST_LINES]:
        say(console, line, style="yellow")
    if len(logs.unusable) > MOST_LINES:
        say(
            console,
            f"and {len(logs.unusable) - MOST_LINES} more{f', all of them in {report}' if report else ''}",
            style="yellow",
        )
    say(console, f"{number_of(len(logs.episodes), 'episode')} can be used, {number_of(len(logs.unusable), 'line')} cannot")
    columns = ("family", "episodes", "won", "turns to imitate", "")
    rows = [(c.family, str(c.episodes), str(c.won), str(c.turns), c.remark) for c in covered]
    console.print(table("", columns, rows, numbers=columns[1:4]))
