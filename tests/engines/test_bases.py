"""Packaged bases: complete, small, and able to answer questions about prompts."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tacit
from tacit.core.errors import TacitError
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models import bases
from tacit.engines.models.bases import BASE_SIZES, BASES, FOLDER, base_path, is_small, pack_base, read_manifest
from tacit.pretraining import measure_reading
from tacit.worlds import get_environment

QUIET = EngineSettings(device="cpu", threads=1)
PACKAGE = Path(tacit.__file__).parent


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_tiny_base_is_packaged():
    assert "tiny-base" in BASES and set(BASES) <= {*BASE_SIZES, "tiny-base-1"}


@pytest.mark.parametrize("name", BASES)
def test_manifest_matches_the_packaged_files(name):
    place = base_path(name)
    manifest = read_manifest(place)
    assert {file: sha256((place / file).read_bytes()) for file in manifest["files"]} == manifest["files"]
    assert {file.name for file in place.iterdir()} == {"base.json", *manifest["files"]}
    assert manifest["hash"] == sha256(json.dumps(manifest["files"], sort_keys=True).encode())
    assert manifest["name"] == name and manifest["command"].startswith(
        f"tacit prepare base DEST --size {name.removesuffix('-1')} "
    )
    tensors = load_file(place / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in tensors.values()) == manifest["parameters"]
    assert manifest["tokens"] > 1e7 and set(manifest["reads"]) == {f"{world} questions" for world in manifest["episodes"]}


def test_package_data_stays_small():
    data = [file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    assert sum(file.stat().st_size for file in data) < 8_000_000
    assert {file.parent.parent for file in data if file.suffix == ".safetensors"} == {FOLDER}


def test_package_data_pattern_includes_all_base_files():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    (pattern,) = project["tool"]["setuptools"]["package-data"]["tacit.engines.models"]
    found = set((PACKAGE / "engines" / "models").glob(pattern))
    assert {file for name in BASES for file in (FOLDER / name).iterdir()} == found


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of the packaged base that tests may damage."""
    monkeypatch.setattr(bases, "FOLDER", tmp_path)
    return Path(shutil.copytree(FOLDER / "tiny-base", tmp_path / "tiny-base"))


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"])
def test_damaged_base_is_refused_and_the_file_named(copied, file):
    assert base_path("tiny-base") == copied
    data = bytearray((copied / file).read_bytes())
    data[len(data) // 2] ^= 1
    (copied / file).write_bytes(data)
    with pytest.raises(TacitError, match=rf"'tiny-base' is damaged: .*{file} does not match base.json"):
        load_policy("tiny-base", QUIET)
    (copied / file).unlink()
    with pytest.raises(TacitError, match=rf"{file} does not match"):
        load_policy("tiny-base", QUIET)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "has no table `files`"), ('{"files": 3}', "has no table `files`")],
)
def test_broken_manifest_is_refused(copied, text, message):
    (copied / "base.json").write_text(text)
    with pytest.raises(TacitError, match=f"tiny-base is not a base: its base.json {message}"):
        base_path("tiny-base")


def test_base_is_recognized_as_small_by_name_and_directory(tmp_path, copied):
    assert is_small("tiny-base") and is_small(str(copied)) and not is_small(str(tmp_path))


@pytest.mark.slow
def test_base_answers_reading_questions_of_its_worlds():
    policy = load_policy("tiny-base", QUIET)
    worlds = [get_environment(name) for name in ("alfworld", "cooking")]
    right = measure_reading(policy, worlds, seed=11, each=120)
    assert set(right) == {"alfworld questions", "cooking questions"} and min(right.values()) >= 0.8, right


def test_packed_base_is_the_trained_model_in_bfloat16(make_policy, tmp_path):
    policy = make_policy(seed=4)
    policy.save(tmp_path / "trained", optimizer=False)
    source = next((tmp_path / "trained").glob("**/config.json")).parent
    pack_base(source, tmp_path / "packed", {"name": "mine"})
    manifest = read_manifest(tmp_path / "packed")
    assert len(manifest["hash"]) == 64 and next(iter(manifest)) == "name"
    assert "model.safetensors" in manifest["files"] and "generation_config.json" not in manifest["files"]
    again = load_policy(str(tmp_path / "packed"), QUIET)
    for (name, ours), theirs in zip(again.engine.model.hf.named_parameters(), policy.engine.model.hf.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float()), name
    assert again.encode_prompt("numbers: 3 4").tolist() == policy.encode_prompt("numbers: 3 4").tolist()


def test_checkpoint_with_a_small_vocabulary_is_small(tmp_path):
    inside = tmp_path / "model"
    inside.mkdir()
    for vocabulary, small in ((2048, True), (49152, False), ("many", False)):
        (inside / "config.json").write_text(json.dumps({"vocab_size": vocabulary}), encoding="utf-8")
        assert is_small(str(tmp_path)) is small and is_small(str(inside)) is small
