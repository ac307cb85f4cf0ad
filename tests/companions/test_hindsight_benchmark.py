"""The hindsight benchmark reports the cost of scoring and the time saved by overlapping a slow analyzer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import run_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_benchmark_prints_iterations_and_endpoint_times_as_json():
    few = ("--groups", "1", "--steps", "2", "--pause", "0.05", "--json")
    done = run_script(ROOT / "benchmarks" / "hindsight.py", *few)
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    grpo, opid = found["iterations"]
    assert (grpo["method"], opid["method"]) == ("grpo", "opid") and grpo["episodes"] == opid["episodes"] == 8
    assert grpo["scoring_s"] == grpo["share_of_tokens"] == 0
    assert 0 < opid["share_of_time"] < 1 and 0 < opid["share_of_tokens"] < 1
    assert opid["whole_s"] == pytest.approx(sum(opid["seconds"].values()))
    endpoint = found["endpoint"]
    assert 1 <= endpoint["questions"] <= 8 and endpoint["worked_s"] >= 0.05
    assert endpoint["saved_s"] == pytest.approx(endpoint["worked_s"] - endpoint["waited_s"])
