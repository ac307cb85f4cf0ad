"""An extractor without a model of its own begins as the actor does: as it is after imitation, where that showed entries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.cli.main import main

TRAIN = (
    "train --world countdown --model tiny --method complementary --sft.steps 2 --sft.tasks 2 --sft.batch 2 --iterations 0 "
    "--evaluation.tasks 1 --no-evaluation.untrained --engine.device cpu --engine.threads 1 --max-steps 2 "
    "--evaluation.max-steps 2"
)


def weights(run: Path) -> tuple[str, str]:
    """digests of the actor and of the extractor when imitation is over"""
    saved = run / "checkpoints" / "sft-000002"
    actor, extractor = (
        json.loads((saved / part / "policy.json").read_text())["digest"] for part in ("policy", "policies/extractor")
    )
    return actor, extractor


@pytest.mark.parametrize("entries", [0, 3])
def test_it_takes_after_an_actor_that_was_shown_entries(entries, tmp_path, capsys):
    assert main([*TRAIN.split(), "--sft.entries", str(entries), "--out", str(tmp_path / "run")]) == 0
    actor, extractor = weights(tmp_path / "run")
    assert (actor == extractor) is bool(entries)
    assert ("the extractor begins as the policy is now" in capsys.readouterr().out) is bool(entries)


def test_one_of_its_own_stays_what_it_is(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[policies.extractor]\nmodel = "tiny"\n')
    assert main([*TRAIN.split(), "--config", str(own), "--sft.entries", "3", "--out", str(tmp_path / "run")]) == 0
    actor, extractor = weights(tmp_path / "run")
    assert actor != extractor
