"""The benchmark of a training step uses adapters on both sides, or on neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import Forked, run_script

from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TINY_SIZES, tiny_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> Forked:
    few = ("--device", "cpu", "--rows", "4", "--prompt-tokens", "8", "--new-tokens", "4", "--repeats", "1", "--threads", "1")
    return run_script(ROOT / "benchmarks" / "train_step.py", *few, *arguments)


@pytest.mark.slow
def test_benchmark_compares_lora_with_peft_and_prints_json():
    done = run("--lora-rank", "2", "--only", "step", "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out.splitlines()[-1])["step"]["tokens_per_s"]) == {"tacit", "transformers", "packed"}


def test_packed_baseline_has_the_gradient_of_the_padded_one(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import train_step

    path = str(tiny_checkpoint(train_step.world_texts(), TINY_SIZES["tiny-0.5m"], 0))
    policy = load_policy(path, EngineSettings(device="cpu", threads=1))
    batch = train_step.ragged_batch(6, 30, 8, 200)
    gradients = []
    for kind in (train_step.PlainStep, train_step.PackedStep):
        hf = train_step.plain_model(path, policy, kind is train_step.PackedStep)
        step = kind(hf, batch)
        monkeypatch.setattr(
            step._optimizer, "step", lambda own=hf: gradients.append([p.grad.clone() for p in own.parameters()])
        )
        step()
    for padded, packed in zip(*gradients, strict=True):
        assert (padded - packed).norm() <= 1e-5 * padded.norm()


def test_lora_is_not_compared_with_full_training():
    done = run("--lora-rank", "2")
    assert done.code == 2 and "TRL's step would train all weights" in done.err
