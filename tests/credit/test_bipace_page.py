"""The page of BiPACE: every equation is in its table, and the metrics it names are those of a run."""

from __future__ import annotations

import re
from pathlib import Path

from stepwise import outcomes, seen

from tacit.credit.pace import ActionPeers

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "methods" / "bipace.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "`tacit/" in line]


def test_every_equation_is_there():
    for wanted in (
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
        assert any(wanted in row.split("|")[1] for row in ROWS), wanted


def test_metrics_are_those_a_run_reports():
    table = PAGE.split("## What a run reports")[1].split("##")[0]
    group = seen("xy", "xz")
    told = {*ActionPeers()([group], [outcomes(group, [1, 0])]).metrics, "radius", "radius_median_size"}
    assert set(re.findall(r"`(\w+)`", table.split("GiGPO, HGPO")[0])) - {"adaptive"} == told
