"""docs/tutorials/own_model.md: its measurement of random play gives the numbers of its table."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "own_model.md").read_text()


@pytest.mark.slow
def test_random_play(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script,) = re.findall(r"^    import random, tacit\n(?:(?:    .*)?\n)+", PAGE, re.MULTILINE)
    exec(dedent(script), {})
    measured = re.findall(r"success (\S+)% (\[.*\])", capsys.readouterr().out)
    stated = re.findall(r"^\| random admissible action.* \| (\S+) (\[.*\]) \|$", PAGE, re.MULTILINE)
    assert measured == stated and len(stated) == 2
