"""The fingerprint of a base: equal for the same model in any storage, different for any other model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tacit.core.errors import TacitError
from tacit.engines.models.bases import checkpoint_directory, fingerprint
from tacit.engines.models.tiny import TinySettings, tiny_checkpoint

SIZES = TinySettings(vocab=512, hidden=32, layers=1, heads=2, kv_heads=2, intermediate=64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return tiny_checkpoint(["go to the fridge 1"], SIZES, 0)


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def edit_json(file: Path, **values) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_fingerprint_does_not_depend_on_the_storage_format(checkpoint: Path, copy: Path) -> None:
    """Two files, other metadata, and another version of transformers."""
    tensors = load_file(copy / "model.safetensors")
    names = sorted(tensors)
    (copy / "model.safetensors").unlink()
    save_file({n: tensors[n] for n in names[:3]}, copy / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    save_file({n: tensors[n] for n in names[3:]}, copy / "model-00002-of-00002.safetensors", metadata={"by": "another"})
    edit_json(copy / "config.json", transformers_version="9.9", _name_or_path="elsewhere")
    assert fingerprint(copy) == fingerprint(checkpoint) and len(fingerprint(copy)) == 64


def test_fingerprint_changes_with_weights_config_and_tokenizer(checkpoint: Path, copy: Path) -> None:
    seen = {fingerprint(checkpoint)}
    tensors = load_file(copy / "model.safetensors")
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] += 1e-3
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    seen.add(fingerprint(copy))
    edit_json(copy / "config.json", rms_norm_eps=0.5)
    seen.add(fingerprint(copy))
    edit_json(copy / "tokenizer_config.json", chat_template="{{ messages }}")
    seen.add(fingerprint(copy))
    edit_json(copy / "tokenizer.json", version="2.0")
    seen.add(fingerprint(copy))
    assert len(seen) == 5


def test_damaged_files_are_named(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TacitError, match=r"model.safetensors is truncated: it has [\d,]+ of [\d,]+ bytes"):
        fingerprint(copy)
    file.unlink()
    with pytest.raises(TacitError, match=r"no weights \(\*.safetensors\)"):
        fingerprint(copy)


def test_pytorch_bin_files_are_hashed_as_bytes(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(b"weights")
    first = fingerprint(copy)
    (copy / "pytorch_model.bin").write_bytes(b"Weights")
    assert fingerprint(copy) != first


def test_checkpoint_directory_of_a_directory_is_itself(checkpoint: Path) -> None:
    assert checkpoint_directory(str(checkpoint)) == checkpoint
