"""The benchmark of a whole iteration says what each phase took, and what became of its peers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from forked import Forked, run_script

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> Forked:
    return run_script(ROOT / "benchmarks" / "iteration.py", *arguments)


def test_phases_and_peers_as_json():
    few = ("--episodes", "8", "--prompt-tokens", "40", "--new-tokens", "4", "--turns", "2", "--repeats", "1")
    done = run("--device", "cpu", *few, "--grow", "turns=1,2", "--json")
    assert done.code == 0, done.err
    one, two = json.loads(done.out.splitlines()[-1])["measured"]
    assert one["turns"] == 1 and one["rows"] == 8 and two["rows"] > 8
    seconds = two["seconds"]
    assert seconds["iteration"] == pytest.approx(seconds["rollout"] + seconds["credit"] + seconds["update"])
    assert 25 < two["tokens_a_row"] < 65
    assert two["peers"]["transformers update"]["seconds"] > 0
    assert "GPU" in two["peers"]["vllm rollout"]["failed"]
    assert two["behaviour_gap"] < 1e-4


def test_a_wrong_thing_to_grow_is_an_error():
    done = run("--grow", "rows=3")
    assert done.code == 2 and "rows=3: it takes episodes, turns, prompt_tokens, new_tokens" in done.err


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="it would start")
def test_a_missing_vllm_is_reported(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from vllm_peer import beside_vllm

    waves = [[([1, 2, 3], 2)]]
    assert beside_vllm("model", waves, str(tmp_path / "nowhere"), 1)["failed"].startswith("there is no directory")
    assert "No module named 'vllm'" in beside_vllm("model", waves, None, 1)["failed"]
    (tmp_path / "vllm.py").write_text("raise RuntimeError('CUDA out of memory')")
    assert "CUDA out of memory" in beside_vllm("model", waves, str(tmp_path), 1)["failed"]
