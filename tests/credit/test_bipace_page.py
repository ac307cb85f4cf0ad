"""The page of BiPACE names files, functions, flags and metrics: all of them exist."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest
from stepwise import outcomes, seen

from tacit.cli.settings.recipe import method_options
from tacit.credit.pace import ActionPeers

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "methods" / "bipace.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "`tacit/" in line]


@pytest.mark.parametrize("row", ROWS)
def test_equations_point_at_code(row):
    places = re.findall(r"`(tacit/[\w/]+)\.py`((?:[,;]? `[\w.]+`(?!\.py))+)", row)
    assert places
    for file, names in places:
        module = importlib.import_module(file.replace("/", "."))
        for name in re.findall(r"`([\w.]+)`", names):
            assert reduce(getattr, name.split("."), module) is not None


def test_every_equation_is_there():
    for wanted in ("Eq. 1,", "Eq. 2,", "Eq. 3 and Algorithm 1", "Eq. 4,", "Eqs. 5–7", "Eq. 8", "appendix F", "appendix H"):
        assert any(wanted in row.split("|")[1] for row in ROWS), wanted


def test_flags_are_those_of_the_methods():
    known = {o.flag for name in ("bipace", "gigpo") for o in method_options(name)}
    known |= {"--world", "--method", "--model", "--jobs", "--min-clusters"}
    assert set(re.findall(r"--[a-z][\w-]*", PAGE)) <= known


def test_metrics_are_those_a_run_reports():
    table = PAGE.split("## What a run reports")[1].split("##")[0]
    group = seen("xy", "xz")
    told = {*ActionPeers()([group], [outcomes(group, [1, 0])]).metrics, "radius", "radius_median_size"}
    assert set(re.findall(r"`(\w+)`", table.split("GiGPO, HGPO")[0])) - {"adaptive"} == told
