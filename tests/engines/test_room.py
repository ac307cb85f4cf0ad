"""A model that does not fit says so, and what would, before it is loaded."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from tacit.core.errors import TacitError
from tacit.engines.local import memory, room
from tacit.engines.local.room import bytes_to_train, check_room, weights_in
from tacit.engines.local.settings import EngineSettings

GPU = torch.device("cuda")


@pytest.fixture
def checkpoint(make_policy, tmp_path) -> tuple[Path, int]:
    hf = make_policy().engine.model.hf
    hf.save_pretrained(tmp_path)
    return tmp_path, hf.num_parameters()


def test_the_files_say_how_many_weights_there_are(checkpoint, tmp_path) -> None:
    path, count = checkpoint
    assert weights_in(path) == count
    (tmp_path / "broken").mkdir()
    assert weights_in(tmp_path / "broken") is None
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing of the kind")
    assert weights_in(tmp_path / "broken") is None


def test_what_does_not_fit_is_refused_or_warned_of(checkpoint, monkeypatch) -> None:
    path, count = checkpoint
    free = {"bytes": 0}
    monkeypatch.setattr(room, "free_bytes", lambda device: free["bytes"])
    monkeypatch.setattr(memory, "room_and_whole", lambda device: (100, 100))

    def check(**settings) -> None:
        check_room(str(path), GPU, torch.bfloat16, EngineSettings(device="cpu", **settings))

    free["bytes"] = 2 * count - 1
    with pytest.raises(TacitError, match=rf"has {count:,} weights: .* in bfloat16, and this GPU has .* Take a smaller model"):
        check(lora_rank=4)
    free["bytes"] = 2 * count
    with pytest.warns(UserWarning, match="to train it set --engine.lora-rank"):
        check()
    free["bytes"] = count * (2 + bytes_to_train(torch.bfloat16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check()
        free["bytes"] = 2 * count
        check(lora_rank=4)
        free["bytes"] = 0
        check_room(str(path), torch.device("cpu"), torch.bfloat16, EngineSettings())
        check_room("some/hub-id", GPU, torch.bfloat16, EngineSettings())
