"""A model that does not fit is refused before it is loaded, with settings that would fit."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import OutOfGPUMemory
from tacit.engines.local import capacity, memory, update
from tacit.engines.local.capacity import FUSED_PROJECTIONS, bytes_to_train, check_memory, read_checkpoint
from tacit.engines.local.memory import GIB
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TinySettings
from tacit.losses.surrogates import Imitation
from tacit.planning.shapes import DEVICES, SIZES, ModelShape
from tacit.planning.timing import Training, activation_bytes, rank_state

GPU = torch.device("cuda")


@pytest.fixture
def checkpoint(make_policy, tmp_path) -> Path:
    make_policy().engine.model.hf.save_pretrained(tmp_path)
    return tmp_path


def published(shape: ModelShape, directory: Path) -> Path:
    """The header of its weights, as published, and no weight."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = {
        "self_attn.q_proj": [queries, shape.width],
        "self_attn.k_proj": [keys, shape.width],
        "self_attn.v_proj": [keys, shape.width],
        "self_attn.o_proj": [shape.width, queries],
        "mlp.gate_proj": [shape.inner, shape.width],
        "mlp.up_proj": [shape.inner, shape.width],
        "mlp.down_proj": [shape.width, shape.inner],
        "input_layernorm": [shape.width],
        "post_attention_layernorm": [shape.width],
    }
    shapes = {"model.embed_tokens": [shape.vocabulary, shape.width], "model.norm": [shape.width]}
    shapes |= {} if shape.tied else {"lm_head": [shape.vocabulary, shape.width]}
    shapes |= {f"model.layers.{i}.{name}": size for i in range(shape.layers) for name, size in layer.items()}
    header = json.dumps({f"{name}.weight": {"shape": size} for name, size in shapes.items()}).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    config = {"num_hidden_layers": shape.layers, "hidden_size": shape.width, "num_attention_heads": shape.heads}
    config |= {"intermediate_size": shape.inner, "head_dim": shape.head_dim, "model_type": "llama"}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def said(monkeypatch):
    """said(path, free bytes, **settings): what is warned of a model on such a GPU."""

    def check(path: Path, free: float, **settings) -> str:
        monkeypatch.setattr(capacity, "free_bytes", lambda device: int(free))
        monkeypatch.setattr(memory, "available_and_total", lambda device: (100, 100))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_memory(str(path), GPU, torch.bfloat16, EngineSettings(device="cpu", **settings))
        return " ".join(str(warning.message) for warning in caught)

    return check


def test_the_files_say_which_weights_there_are(make_policy, checkpoint) -> None:
    hf = make_policy().engine.model.hf
    found = read_checkpoint(checkpoint)
    assert found is not None and found.weights == hf.num_parameters()
    assert found.fused_weights == sum(p.numel() for n, p in hf.named_parameters() if n.split(".")[-2] in FUSED_PROJECTIONS)
    adapted = make_policy(lora_rank=4).engine.member("default").parameters
    assert found.lora_weights(4, EngineSettings().lora_targets) == sum(p.numel() for p in adapted.values())
    shutil.copy(checkpoint / "model.safetensors", checkpoint / "consolidated.safetensors")  # as some are published
    assert read_checkpoint(checkpoint) == found


@pytest.mark.parametrize("damage", ["no files", "no weights", "no configuration", "not a configuration"])
def test_of_a_damaged_checkpoint_nothing_is_said_here(checkpoint, said, damage) -> None:
    if damage == "no files":
        (checkpoint / "model.safetensors").unlink()
    elif damage == "no weights":
        (checkpoint / "model.safetensors").write_bytes(b"nothing of the kind")
    elif damage == "no configuration":
        (checkpoint / "config.json").unlink()
    else:
        (checkpoint / "config.json").write_text("[]")
    assert read_checkpoint(checkpoint) is None and not said(checkpoint, 0)


def test_a_pass_keeps_what_is_said_of_it(texts, own_cache, tmp_path, monkeypatch) -> None:
    """A token's bytes, and the joined matrices, as counted of a real pass of many layers: the first and the last keep less."""
    rng = np.random.default_rng(0)
    batch = Batch.imitation([rng.integers(2, 250, size=40) for _ in range(9)], [rng.integers(2, 250, size=9) for _ in range(9)])
    monkeypatch.setattr(update, "PROBE_TOKENS", 200)
    engine = load_policy("tiny", EngineSettings(device="cpu"), 0, texts, TinySettings(layers=12)).engine
    engine.model.hf.save_pretrained(tmp_path)
    fixed, per_token = update.measure_activation_bytes(engine.make_updater("default"), batch, [Imitation()], np.arange(9))
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert per_token == pytest.approx(found.token_bytes(4, False), rel=0.15)
    assert fixed == pytest.approx(4 * found.fused_weights, rel=0.15)


@pytest.mark.parametrize("size", ["1.5B", "8B", "70B"])
@pytest.mark.parametrize("rank", [0, 64])
@pytest.mark.parametrize("recompute", [False, True])
def test_it_takes_what_tacit_plan_says(tmp_path, size, rank, recompute) -> None:
    shape, device = SIZES[size], DEVICES["h100"]
    found = read_checkpoint(published(shape, tmp_path))
    assert found is not None and found.weights == shape.weights
    way = capacity._TrainingPlan(
        found, torch.bfloat16, EngineSettings(device="cpu", lora_rank=rank, gradient_checkpointing=recompute)
    )
    planned = rank_state(shape, device, 1, Training(lora_rank=rank, recompute=recompute))
    ours = (
        way.state - capacity.LOGIT_BYTES - (0 if recompute else 2 * found.fused_weights)
    )  # which a plan leaves out, as it does adapters' own gradients
    assert ours == pytest.approx(sum(planned.values()) - device.overhead, rel=0.04)
    assert way.per_token == activation_bytes(shape, device, recompute)


def test_what_does_not_fit_is_refused_and_what_cannot_be_trained_says_what_could_be(tmp_path, said) -> None:
    path = published(SIZES["8B"], tmp_path)
    with pytest.raises(
        OutOfGPUMemory, match=r"has 8,030,261,248 weights: 15\.0 GiB in bfloat16, and 8\.5 GiB of fused copies.* 23\.0 GiB free"
    ):
        said(path, 23 * GIB)
    whole = said(path, 79 * GIB)
    assert "To train all of them takes 160.1 GiB, and 5.6 GiB for every 1,000 tokens" in whole
    assert "has 79.0 GiB free. It can be sampled; to train it set --engine.lora-rank 64, which takes 28.6 GiB" in whole
    assert not said(path, 79 * GIB, lora_rank=64) and not said(path, 170 * GIB)
    assert "set --engine.lora-rank 64 --engine.gradient-checkpointing, which takes 20.1 GiB" in said(path, 31 * GIB)
    assert "To train adapters of rank 32 takes" in said(path, 27 * GIB, lora_rank=32)
    assert "to train it set --engine.gradient-checkpointing, which" in said(path, 27 * GIB, lora_rank=32)
    assert "to train it use a larger GPU, or several" in said(path, 24 * GIB, lora_rank=1024)


def test_adapters_of_a_small_model_stand_beside_copies_of_its_weights(tmp_path, said) -> None:
    """28 layers of 8,960 · 1,536 and 1,536 · 1,536 weights; the large ones of an 8B model are read where they lie."""
    targets = EngineSettings().lora_targets
    large = read_checkpoint(published(SIZES["8B"], tmp_path))
    assert large is not None and large.lora_copied_weights(targets) == 0
    small = published(SIZES["1.5B"], tmp_path)
    found = read_checkpoint(small)
    assert found is not None and found.lora_copied_weights(targets) == 28 * (8960 * 1536 + 1536 * 1536)
    assert found.lora_copied_weights(("q_proj", "down_proj")) == 28 * 8960 * 1536
    with pytest.raises(OutOfGPUMemory, match=r"and 1\.6 GiB of fused copies"):
        said(small, GIB)
    with pytest.raises(OutOfGPUMemory, match=r"and 2\.4 GiB of fused copies"):
        said(small, GIB, lora_rank=16)


def test_a_cpu_and_a_name_are_not_asked(checkpoint, monkeypatch) -> None:
    monkeypatch.setattr(capacity, "free_bytes", lambda device: 0)
    check_memory(str(checkpoint), torch.device("cpu"), torch.bfloat16, EngineSettings())
    check_memory("some/hub-id", GPU, torch.bfloat16, EngineSettings())


def test_a_float32_weight_is_its_own_master() -> None:
    assert (bytes_to_train(torch.float32), bytes_to_train(torch.bfloat16)) == (12, 18)
