"""docs/methods/bipace.md: the table lists every equation, and the listed metrics are those of a run."""

from __future__ import annotations

import re
from pathlib import Path

from stepwise import outcomes, seen

from tacit.credit.step_relative import ActionPeers

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "methods" / "bipace.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "`tacit/" in line]


def test_docs_table_lists_every_equation():
    for equation in (
        "Eq. 1,",
        "Eq. 2,",
        "Eq. 3 and Algorithm 1",
        "Eq. 4,",
        "Eq. 5,",
        "Eq. 6,",
        "Eq. 7,",
        "Eq. 8",
        "appendix F",
        "appendix H",
    ):
        assert any(equation in row.split("|")[1] for row in ROWS), equation


def test_docs_list_the_metrics_of_a_run():
    table = PAGE.split("## What a run reports")[1].split("##")[0]
    group = seen("xy", "xz")
    metrics = {*ActionPeers()([group], [outcomes(group, [1, 0])]).metrics, "radius", "radius_median_size"}
    assert set(re.findall(r"`(\w+)`", table.split("GiGPO, HGPO")[0])) - {"adaptive"} == metrics
