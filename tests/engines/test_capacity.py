"""A model that does not fit is refused before it is loaded; the message names settings that would fit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from tacit.core.errors import OutOfGPUMemory
from tacit.engines.local import memory
from tacit.engines.local.memory import GIB, check_memory
from tacit.engines.local.settings import EngineSettings
from tacit.planning.shapes import SIZES

GPU = torch.device("cuda")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The config of an 8B model, without weights."""
    shape = SIZES["8B"]
    config = {"num_hidden_layers": shape.layers, "hidden_size": shape.width, "num_attention_heads": shape.heads}
    config |= {"num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary, "model_type": "llama"}
    config |= {"intermediate_size": shape.inner, "head_dim": shape.head_dim, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def warn(monkeypatch):
    """warn(path, free bytes, **settings): the warnings for this model on such a GPU."""

    def check(path: Path, free: float, **settings) -> str:
        monkeypatch.setattr(memory, "free_bytes", lambda device: int(free))
        monkeypatch.setattr(memory, "available_and_total", lambda device: (100, 100))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_memory(str(path), GPU, torch.bfloat16, EngineSettings(device="cpu", **settings))
        return " ".join(str(warning.message) for warning in caught)

    return check


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"model_type": "mamba"}'])
def test_unknown_configs_give_no_warning(tmp_path, warn, config) -> None:
    (tmp_path / "config.json").write_text(config)
    assert not warn(tmp_path, 0)


def test_model_too_large_is_refused_or_warned_with_settings_that_fit(model, warn) -> None:
    with pytest.raises(
        OutOfGPUMemory, match=r"has 8,030,261,248 weights: 15\.0 GiB in bfloat16, and 8\.5 GiB of fused copies.* 23\.0 GiB free"
    ):
        warn(model, 23 * GIB)
    whole = warn(model, 79 * GIB)
    assert "Training all weights takes 159.6 GiB, and 5.6 GiB for every 1,000 tokens" in whole
    assert "has 79.0 GiB free. It can be sampled; to train it, set --engine.lora-rank 64, which takes 27.8 GiB" in whole
    assert not warn(model, 79 * GIB, lora_rank=64) and not warn(model, 170 * GIB)
    assert "set --engine.lora-rank 64 --engine.gradient-checkpointing, which takes 19.3 GiB" in warn(model, 30 * GIB)
    assert "Training adapters of rank 32 takes" in warn(model, 26 * GIB, lora_rank=32)
    assert "to train it, set --engine.gradient-checkpointing, which" in warn(model, 26 * GIB, lora_rank=32)
    assert "to train it, use a larger GPU, or several" in warn(model, 24 * GIB, lora_rank=1024)


def test_memory_is_not_checked_for_cpus_and_hub_names(model, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0)
    monkeypatch.setattr(memory, "available_and_total", lambda device: (100, 100))
    with pytest.raises(OutOfGPUMemory):
        check_memory(str(model), GPU, torch.bfloat16, EngineSettings())
    check_memory(str(model), torch.device("cpu"), torch.bfloat16, EngineSettings())
    check_memory("some/hub-id", GPU, torch.bfloat16, EngineSettings())
