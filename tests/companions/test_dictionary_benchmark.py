"""The benchmark of the E-step runs and prints one JSON object last."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from forked import Forked, run_script

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> Forked:
    return run_script(ROOT / "benchmarks" / "dictionary.py", *arguments)


@pytest.mark.slow
def test_benchmark_prints_json_figures(tmp_path):
    record = {"stage": "rl", "step": 1, "dictionary_seconds": 0.002, "seconds": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    done = run("--groups", "3", "--original", "1", "--no-growth", "--run", str(tmp_path), "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out.splitlines()[-1])
    uniform, reuse = figures["f1"]["uniform"], figures["e_step"]["reuse"]
    assert 0 < uniform["greedy_ms"] < uniform["all_singletons_ms"] < uniform["original_ms"]
    assert uniform["greedy_bits"] >= uniform["all_singletons_bits"] and reuse["merged"] > 20
    assert reuse["ms"] < 1500, "150 ms on an idle core; ten times that is a mistake, not a busy machine"
    assert figures["share"]["share_percent"] == 0.2


def test_planted_phrases_are_found_with_many_sequences():
    spec = importlib.util.spec_from_file_location("dictionary_benchmark", ROOT / "benchmarks" / "dictionary.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    few, many = benchmark.planted(10, groups=8), benchmark.planted(300, groups=8)
    assert few["above_percent"] > 0 and few["found"] / few["planted"] < 0.5
    assert many["found"] / many["planted"] > 0.6


@pytest.mark.slow
def test_run_without_dictionary_metrics_is_refused(tmp_path):
    done = run("--groups", "1", "--original", "0", "--no-growth", "--run", str(tmp_path))
    assert done.code == 2 and "no iteration with a dictionary" in done.err
