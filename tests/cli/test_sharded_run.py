"""`--engine sharded` from the command line: training, evaluation and refused settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.runs.directory import read_summary

RUN = """train --world countdown --model tiny --tiny.vocab 512 --tiny.hidden 32 --tiny.layers 2 --tiny.heads 2 --tiny.kv-heads 2
--sft.steps 2 --sft.batch 4 --iterations 2 --groups 2 --group-size 2 --tasks 8 --max-steps 3 --evaluation.tasks 2
--evaluation.max-steps 3 --kl 0.01 --checkpoint-every 1 --engine.device cpu""".split()  # noqa: SIM905


@pytest.mark.slow
def test_run_on_two_ranks_matches_run_on_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = ["--engine", "sharded", "--engine.ranks", "2", "--engine.timeout-s", "120"]
    assert main([*RUN, *ranks, "--out", str(tmp_path / "two")]) == 0
    assert main([*RUN, "--out", str(tmp_path / "one")]) == 0
    two, one = (_metrics(tmp_path / name) for name in ("two", "one"))
    assert [m["stage"] for m in two] == [m["stage"] for m in one] and len(two) == 4
    for ours, theirs in zip(two, one, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3, abs=1e-4)
    assert max(m["behaviour_gap_max"] for m in two if m["stage"] == "rl") < 1e-4
    assert read_summary(tmp_path / "two")["digest"] == json.loads(_manifest(tmp_path / "two"))["digest"]
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "two"), "--tasks", "2"]) == 0


def test_overlap_without_servers_is_refused_before_loading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.config.resources.RunResources.open", lambda self: pytest.fail("something was loaded"))
    for engine in (["--engine", "local"], ["--engine", "sharded", "--engine.threads", "1"]):
        assert main([*RUN, *engine, "--overlap", "1", "--out", str(tmp_path / "run")]) != 0
        assert "--engine.servers 1" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def _metrics(run: Path) -> list[dict]:
    return [m for m in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "grad_norm" in m]


def _manifest(run: Path) -> str:
    return (run / "checkpoints" / "rl-000002" / "policy" / "policy.json").read_text()
