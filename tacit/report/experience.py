"""Both tracks of a run with an experience bank, by iteration (Complementary RL), and the entries that stood out in it.

Runs without a bank have nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.companions.experience.opening import IN_A_RUN, read_bank
from tacit.companions.experience.ranking import Order, ranked
from tacit.core.errors import TacitError
from tacit.evaluation.pictures import Series
from tacit.report.charts import draw

HALVES = {"guided": "experience/success_guided", "free": "experience/success_free"}
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "experience/extractor_reward": ("Reward of the extractor's entries", {}),
    "experience/entries": ("Entries in the bank", {"floor": 0.0}),
    "experience/merges": ("Merges so far", {"floor": 0.0}),
    "experience/search_ms": ("Search of a group, ms", {"floor": 0.0}),
}
MOST_ENTRIES = 5
LONGEST = 400
"""characters of an entry on the page"""


def experience_charts(found: dict[str, list[Series]], word: str) -> list[Markup]:
    """Of the metrics of a run, which are taken out of `found`: the two halves in one chart for each world, then the others."""
    charts = []
    halves = {name: found.pop(metric) for name, metric in HALVES.items() if metric in found}
    worlds = list(dict.fromkeys(line.name for lines in halves.values() for line in lines))
    for world in worlds:
        own = {name: line for name, lines in halves.items() for line in lines if line.name == world}
        title = "Success with an entry and without" if len(worlds) == 1 else f"Success guided and free, {world}"
        charts.append(
            draw(title, [replace(s, name=name, colour=i) for i, (name, s) in enumerate(own.items())], word, share=True)
        )
    for metric, (title, scale) in ALONE.items():
        if metric in found:
            charts.append(draw(title, found.pop(metric), word, **scale))
    return charts


def standing_out(run: Path, notices: list[str]) -> dict[str, Sequence[tuple[Any, ...]]] | None:
    """Title -> rows (entry, won, lost, where it came from, text), of the entries whose readers won or lost most."""
    path = run / IN_A_RUN
    if not path.is_file():
        return None
    try:
        bank = read_bank(path)
    except TacitError as error:
        notices.append(str(error))
        return None
    try:
        orders: dict[str, Order] = {"Most useful entries": "useful", "Most harmful entries": "harmful"}
        several = len({entry.origin.world for entry in bank.entries.values()} - {""}) > 1
        return {title: [_row(*pair, several) for pair in ranked(bank, order)[:MOST_ENTRIES]] for title, order in orders.items()}
    finally:
        bank.close()


def _row(entry: Any, usage: Any, several: bool) -> tuple[Any, ...]:
    """A task's name need not say its world, which is said where the bank has entries from several."""
    world, place = entry.origin.world, entry.origin.task or entry.origin.operation
    place = f"{world}: {place.removeprefix(f'{world}/')}" if several and world else place
    text = entry.text if len(entry.text) <= LONGEST else f"{entry.text[: LONGEST - 1]}…"
    return entry.id, usage.wins, usage.losses, place, text
