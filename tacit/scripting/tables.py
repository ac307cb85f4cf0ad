"""What a run has recorded, as rows; and rows as a pandas table, where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tacit.core.errors import TacitError, install

if TYPE_CHECKING:
    import pandas

EPISODE = ("task", "family", "success", "score", "stop", "condition")
"""of the episode, in every row of one of its turns"""


def turn_rows(stage: str, step: int, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each turn of each recorded episode; signals are columns of their own (`signals.progress`)."""
    for episode, record in enumerate(records):
        about = {"stage": stage, "step": step, "episode": episode, **{name: record.get(name) for name in EPISODE}}
        for number, turn in enumerate(record["turns"], start=1):
            own = {name: value for name, value in turn.items() if name != "signals"}
            signals = {f"signals.{name}": value for name, value in turn.get("signals", {}).items()}
            yield {**about, "turn": number, **own, **signals}


def episode_rows(stage: str, step: int, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each recorded episode."""
    for episode, record in enumerate(records):
        own = {name: value for name, value in record.items() if name not in ("turns", "saw")}
        tokens = sum(turn["tokens"] for turn in record["turns"])
        yield {"stage": stage, "step": step, "episode": episode, **own, "turns": len(record["turns"]), "tokens": tokens}


def table(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError as error:
        raise TacitError(
            f"tables are pandas', which is not installed: {install('tables')}; `rows=True` does without."
        ) from error
    return pandas.DataFrame(list(rows))
