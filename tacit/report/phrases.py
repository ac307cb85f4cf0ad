"""The phrases that a run's skill dictionary holds, by the newest checkpoint that has one (ReuseRL).

Runs of methods without a dictionary have nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.companions.dictionary.companion import FILE, History, SkillDictionary
from tacit.report.numbers import percent
from tacit.report.run_files import read_table
from tacit.runs.checkpoints import COMPANIONS
from tacit.runs.directory import saved_checkpoints

MOST_PHRASES = 20


def phrases_of(run: Path, notices: list[str]) -> dict[str, Sequence[tuple[Any, ...]]]:
    """Title -> rows (phrase, uses, since, share of E-steps), those used most first; one table for each world that has one."""
    for checkpoint in reversed(saved_checkpoints(run).all()):
        home = checkpoint.path / COMPANIONS
        if files := sorted(home.glob(f"**/{SkillDictionary.name}/{FILE}")):
            told: dict[str, Sequence[tuple[Any, ...]]] = {}
            for file in files:
                world = str(file.parent.parent.relative_to(home)).removeprefix(".")
                title = f"{f'{world}: p' if world else 'P'}hrases as of {checkpoint.path.name}"
                told[title] = _rows(read_table(file, notices), notices)
            return told
    return {}


def _rows(state: Any, notices: list[str]) -> list[tuple[Any, ...]]:
    try:
        standing = History.load(state["history"]).standing()[:MOST_PHRASES]
        return [(" › ".join(map(str, p["phrase"])), p["uses"], p["since"], percent(p["present"])) for p in standing]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        notices.append(f"{FILE} of the newest checkpoint cannot be read ({type(error).__name__}: {error}).")
        return []
