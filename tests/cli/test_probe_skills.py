"""`tacit inspect skills --probe`: a base that was shown notes reads them, and says so in numbers and in a table."""

from __future__ import annotations

import json

import pytest

from tacit.cli.main import main
from tacit.evaluation.hints import FOLLOWED

PROBE = "inspect skills tiny-base --probe --world alfworld --state-block --history 1 --tasks 2 --engine.device cpu".split()  # noqa: SIM905


@pytest.mark.slow
def test_the_packaged_base_reads_a_true_hint_and_follows_a_false_one(capsys):
    assert main([*PROBE, "--json"]) == 0
    found = {(row["kind"], row["place"]): row for row in json.loads(capsys.readouterr().out)}
    for place in ("step", "task"):
        true, followed, others = found["true", place], found[FOLLOWED, place], ("false", "irrelevant", "empty")
        assert min(true["shift"], followed["shift"]) > 1 + max(found[kind, place]["shift"] for kind in others)
        assert true["raised"] == followed["raised"] == 1.0 and true["turns"] > 10
    assert main(PROBE) == 0
    assert "false, what it names" in capsys.readouterr().out


def test_what_cannot_be_probed_is_refused_with_the_reason(capsys):
    assert main(["inspect", "skills", "expert", "--probe", "--world", "alfworld"]) != 0
    assert "cannot score text" in capsys.readouterr().err
    assert main([*PROBE[:-4], "--tasks", "1"]) != 0
    assert "must be at least 2" in capsys.readouterr().err
