"""The page of the method names files and functions: all of them exist."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "methods" / "reuserl.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "`tacit/" in line]


@pytest.mark.parametrize("row", ROWS)
def test_equations_point_at_code(row):
    for file, names in re.findall(r"`(tacit/[\w/]+)\.py`((?:,? `[\w.]+`)+)", row):
        module = importlib.import_module(file.replace("/", "."))
        for name in re.findall(r"`([\w.]+)`", names):
            assert reduce(getattr, name.split("."), module) is not None


def test_the_table_is_there():
    assert len(ROWS) >= 12


def test_flags_are_those_of_the_methods():
    from tacit.cli.settings.recipe import method_options

    known = {o.flag for o in method_options("reuserl")} | {"--world", "--method", "--json", "--jobs"}
    assert set(re.findall(r"--[a-z][\w-]*", PAGE)) <= known
