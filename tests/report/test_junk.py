"""Pages are rendered from damaged files: any value may be replaced by any other."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from parsed import Page
from written import episode, write_comparison, write_run

from tacit.core.errors import TacitError
from tacit.report.comparison_page import render_comparison
from tacit.report.run_page import render_run
from tacit.runs.trajectories import read_records, write_records

JUNK = (None, "", "text", -1, 1e308, float("nan"), True, [], [1, None], {}, {"a": []})


def spoilt(value: Any, chance: random.Random, share: float) -> Any:
    """A copy of `value` with some parts replaced by junk."""
    if chance.random() < share:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        return {key: spoilt(inner, chance, share) for key, inner in value.items() if chance.random() > share / 2}
    return [spoilt(inner, chance, share) for inner in value] if isinstance(value, list) else value


def spoil(file: Path, chance: random.Random, share: float) -> None:
    if file.name.endswith(".gz"):
        write_records(file, [spoilt(record, chance, share) for record in read_records(file)])
    elif file.suffix == ".jsonl":
        lines = [json.dumps(spoilt(json.loads(line), chance, share)) for line in file.read_text().splitlines()]
        file.write_text("\n".join(lines))
    else:
        file.write_text(json.dumps(spoilt(json.loads(file.read_text()), chance, share)))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("seed", range(24))
def test_run_page_renders_from_damaged_files(tmp_path, seed):
    chance = random.Random(seed)
    run = write_run(tmp_path / "run", episodes=[episode(n, n % 2 == 0, n % 4) for n in range(8)])
    for file in sorted(p for p in run.rglob("*") if p.is_file()):
        spoil(file, chance, share=(0.02, 0.2)[seed % 2])
    try:
        html = render_run(run)
    except TacitError as error:
        assert "settings" in str(error)
        return
    Page(html)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(24))
def test_comparison_page_renders_from_damaged_files(tmp_path, seed):
    place = write_comparison(tmp_path / "compared")
    spoil(place / "comparison.json", random.Random(seed), share=(0.004, 0.1)[seed % 2])
    try:
        html = render_comparison(place)
    except TacitError as error:
        assert "not a comparison" in str(error)
        return
    Page(html)
