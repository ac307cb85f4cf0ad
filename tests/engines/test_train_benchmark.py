"""The benchmark of a training step has adapters on both sides, or none."""

from __future__ import annotations

import json
from pathlib import Path

from forked import Forked, run_script

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> Forked:
    few = ("--device", "cpu", "--rows", "4", "--prompt-tokens", "8", "--new-tokens", "4", "--repeats", "1", "--threads", "1")
    return run_script(ROOT / "benchmarks" / "train_step.py", *few, *arguments)


def test_adapters_beside_pefts_as_json():
    done = run("--lora-rank", "2", "--only", "step", "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out.splitlines()[-1])["step"]["tokens_per_s"]) == {"tacit", "transformers"}


def test_adapters_are_not_compared_with_all_weights():
    done = run("--lora-rank", "2")
    assert done.code == 2 and "TRL's step would train all weights" in done.err
