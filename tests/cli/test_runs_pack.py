"""`tacit runs pack` and `unpack`: a run continues on another machine as if it had not stopped."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tacit.cli.main import main
from tacit.config import portable
from tacit.engines.local.checkpoint import compact_file

SMALL = """
world = "countdown"
model = "tiny"
tiny = { vocab = 512, hidden = 32, layers = 1, heads = 2, kv_heads = 2, intermediate = 64 }
tasks = 32
max_steps = 4
checkpoint_every = 1
trajectories = false
method = { name = "grpo", kl = 0.01 }
schedule = { groups = 4, group_size = 4, iterations = 2, lr = 1e-3 }
sft = { steps = 3, batch = 8, tasks = 16 }
evaluation = { tasks = 2, every = 0, max_steps = 2 }
engine = { device = "cpu", threads = 1, lora_rank = 4 }
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of three iterations, the same run stopped after two, and a pack of the stopped one."""
    place = tmp_path_factory.mktemp("runs")
    (place / "small.toml").write_text(SMALL)
    assert main(["train", "--config", str(place / "small.toml"), "--out", str(place / "whole")]) == 0
    shutil.copytree(place / "whole", place / "half")
    assert main(["train", "--resume", str(place / "whole"), "--iterations", "3"]) == 0
    assert main(["runs", "pack", str(place / "half"), "--out", str(place / "half.pack")]) == 0
    return place


def weights(run, step):
    return load_file(run / "checkpoints" / f"rl-{step:06d}" / "policy" / "adapters" / "default" / "adapter_model.safetensors")


@pytest.mark.slow
def test_run_resumed_from_a_pack_equals_uninterrupted_run(runs, tmp_path, capsys):
    shutil.copytree(runs / "half.pack", tmp_path / "half.pack")
    assert main(["train", f"--resume={tmp_path / 'half.pack'}", "--iterations", "3"]) == 0
    assert "unpacked to" in capsys.readouterr().out
    ours, theirs = weights(tmp_path / "half", 3), weights(runs / "whole", 3)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    old = weights(runs / "whole", 2)
    assert any(not torch.equal(ours[name], old[name]) for name in ours), "the third iteration changed nothing"
    assert not (tmp_path / "half" / "trajectories").exists()


@pytest.mark.slow
def test_parts_are_small_and_manifest_names_the_run(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(portable, "PART_BYTES", 5000)
    manifest = portable.pack_run(runs / "half", tmp_path / "pack")
    sizes = [(tmp_path / "pack" / part["name"]).stat().st_size for part in manifest["parts"]]
    assert len(sizes) > 3 and max(sizes) <= 5000
    assert (manifest["run"], manifest["method"], manifest["checkpoint"]) == ("half", "grpo", "rl-000002")
    run, before = portable.unpack_run(tmp_path / "pack")
    assert before == "" and (run / "settings.json").read_text() == (runs / "half" / "settings.json").read_text()


@pytest.mark.slow
def test_compact_pack_keeps_weights_and_rounds_moments(runs, tmp_path):
    portable.pack_run(runs / "half", tmp_path / "pack", compact=True)
    run, _ = portable.unpack_run(tmp_path / "pack", tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(weights(run, 2).values(), weights(runs / "half", 2).values(), strict=True))
    place = "checkpoints/rl-000002/policy/training/default.safetensors"
    ours, theirs = load_file(run / place), load_file(runs / "half" / place)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        scale = expected.abs().max()
        if name.startswith("exp_avg/"):
            assert (ours[name] - expected).abs().max() <= scale / 13 + 1e-12
        elif name.startswith("exp_avg_sq/") and expected.ndim == 2:
            np.testing.assert_allclose(ours[name].mean(0), expected.mean(0), rtol=0.02, atol=1e-20)
            np.testing.assert_allclose(ours[name].mean(1), expected.mean(1), rtol=0.02, atol=1e-20)
        else:
            assert torch.equal(ours[name], expected)
    assert main(["train", "--resume", str(run), "--iterations", "3"]) == 0


@pytest.mark.slow
def test_compact_pack_of_bfloat16_weights_can_be_resumed(runs, tmp_path):
    words = ["--config", str(runs / "small.toml"), "--engine.dtype", "bfloat16", "--iterations", "1"]
    assert main(["train", *words, "--out", str(tmp_path / "half")]) == 0
    assert main(["runs", "pack", str(tmp_path / "half"), "--compact", "--out", str(tmp_path / "pack")]) == 0
    run, _ = portable.unpack_run(tmp_path / "pack", tmp_path / "again")
    ours, theirs = weights(run, 1), weights(tmp_path / "half", 1)
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == torch.bfloat16 for name in ours)
    assert main(["train", "--resume", str(run), "--iterations", "2"]) == 0


def test_compact_pack_needs_less_than_2_6_bytes_per_parameter(tmp_path):
    """48 MB for rank 16 on Qwen2.5-1.5B (18.5 million parameters, bfloat16) is 2.6 bytes per parameter, weights included."""
    torch.manual_seed(0)
    names = [f"layers.{i}.lora_{side}.default.weight" for i in range(4) for side in "AB"]
    weights = {n: torch.empty(16, 1536).uniform_(-0.025, 0.025) if "A" in n else 1e-3 * torch.randn(1536, 16) for n in names}
    state = {f"master/{n}": w for n, w in weights.items()} | {
        f"exp_avg/{n}": 1e-4 * torch.randn_like(w) for n, w in weights.items()
    }
    state |= {f"exp_avg_sq/{n}": 1e-8 * torch.randn_like(w) ** 2 for n, w in weights.items()}
    for place in ("adapters/default", "training"):
        (tmp_path / place).mkdir(parents=True)
    save_file({n: w.bfloat16() for n, w in weights.items()}, tmp_path / "adapters/default/adapter_model.safetensors")
    save_file(state, tmp_path / "training" / "default.safetensors")
    small = compact_file(tmp_path / "training" / "default.safetensors")
    assert small is not None
    packed = gzip.compress((tmp_path / "adapters/default/adapter_model.safetensors").read_bytes() + small, 1)
    assert len(packed) / sum(w.numel() for w in weights.values()) < 2.6


@pytest.mark.slow
def test_bad_packs_are_refused_with_the_reason(runs, tmp_path, capsys):
    def refuse(*words: str) -> str:
        assert main(["runs", *words]) == 2
        return capsys.readouterr().err

    pack = tmp_path / "half.pack"
    shutil.copytree(runs / "half.pack", pack)
    assert "already exists" in refuse("pack", str(runs / "half"), "--out", str(pack))
    assert "is not a run directory" in refuse("pack", str(tmp_path / "nothing"))
    assert "no checkpoint 'rl-000099'" in refuse("pack", str(runs / "half"), "--checkpoint", "rl-000099")
    assert "cannot read" in refuse("unpack", str(tmp_path / "nothing"))
    part = pack / "part-000"
    good = part.read_bytes()
    part.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert "part-000 is missing or damaged" in refuse("unpack", str(pack))
    part.write_bytes(good)
    manifest = json.loads((pack / "pack.json").read_text())
    (pack / "pack.json").write_text(json.dumps({**manifest, "run": "../elsewhere"}))
    assert "is not a directory name" in refuse("unpack", str(pack))
    (pack / "pack.json").write_text(json.dumps({**manifest, "model": "no/such/model", "fingerprint": "0" * 64}))
    assert "Give its path with --model" in refuse("unpack", str(pack))
    (pack / "pack.json").write_text(json.dumps({**manifest, "format": 99}))
    assert "has format 99" in refuse("unpack", str(pack))
    (pack / "pack.json").write_text(json.dumps(manifest))
    assert not (tmp_path / "half").exists(), "a refused pack leaves nothing behind"


@pytest.mark.slow
def test_pack_of_another_model_is_refused(runs, tmp_path, capsys):
    from tacit.engines.models.bases import fingerprint

    pack = tmp_path / "half.pack"
    shutil.copytree(runs / "half.pack", pack)
    words = ["--config", str(runs / "small.toml"), "--engine.lora-rank", "0", "--iterations", "1"]
    assert main(["train", *words, "--out", str(tmp_path / "other")]) == 0
    model = tmp_path / "other" / "checkpoints" / "rl-000001" / "policy" / "model"
    manifest = json.loads((pack / "pack.json").read_text())
    (pack / "pack.json").write_text(json.dumps({**manifest, "model": "there/model", "fingerprint": fingerprint(model)}))
    path, _ = portable.unpack_run(pack, tmp_path / "right", str(model))
    assert json.loads((path / "settings.json").read_text())["model"] == str(model)
    (pack / "pack.json").write_text(json.dumps({**manifest, "model": "there/model", "fingerprint": "1" * 64}))
    assert main(["runs", "unpack", str(pack), "--out", str(tmp_path / "wrong"), "--model", str(model)]) == 2
    assert "another model" in capsys.readouterr().err


@pytest.mark.slow
def test_unpacking_twice_is_reported(runs, tmp_path, capsys):
    pack = tmp_path / "half.pack"
    shutil.copytree(runs / "half.pack", pack)
    assert main(["runs", "unpack", str(pack)]) == 0
    assert "unpacked before" not in capsys.readouterr().out
    assert main(["runs", "unpack", str(pack)]) == 2
    assert "already exists. Continue it with `tacit train --resume" in capsys.readouterr().err
    assert main(["runs", "unpack", str(pack), "--out", str(tmp_path / "again")]) == 0
    assert "unpacked before" in capsys.readouterr().out


def write_pack(place: Path, data: bytes, **changes: Any) -> Path:
    place.mkdir(parents=True)
    (place / "part-000").write_bytes(data)
    part = {"name": "part-000", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"format": 1, "run": "run", "model": "tiny", "fingerprint": "", "checkpoint": "rl-000001", "parts": [part]}
    (place / "pack.json").write_text(json.dumps({**manifest, **changes}))
    return place


def write_tar(*members: tuple[str, bytes, bytes], repeat: int = 1) -> bytes:
    """Members are (name, type, contents). The contents of each are written `repeat` times."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, repeat * len(data), "/etc/passwd"
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            for _ in range(repeat):
                file.write(data)
            file.write(bytes(-info.size % tarfile.BLOCKSIZE))
    return packed.getvalue()


def test_hostile_packs_are_refused_and_write_nothing(tmp_path, capsys):
    """The first header is a quarter of a megabyte compressed; tarfile would expand all of it in memory."""
    moments = tmp_path / "training" / "default.safetensors"
    moments.parent.mkdir()
    rank_one = {"exp_avg_sq.rows/w": torch.ones(1 << 20), "exp_avg_sq.columns/w": torch.ones(1 << 20)}
    save_file({**rank_one, "exp_avg.shape/w": torch.tensor([2, 2])}, moments)
    hostile = {
        "expands to more than": write_tar(("x", tarfile.XHDTYPE, b"0" * (1 << 20)), repeat=256),
        "is not a file, or too large": write_tar(("x", tarfile.SYMTYPE, b"")),
        "outside the destination": write_tar(("../x", tarfile.REGTYPE, b"")),
        "of different shapes": write_tar(("training/default.safetensors", tarfile.REGTYPE, moments.read_bytes())),
        "Not a gzipped file": b"x" * 1000,
    }
    for number, (says, data) in enumerate(hostile.items()):
        assert main(["runs", "unpack", str(write_pack(tmp_path / f"pack-{number}", data))]) == 2
        assert says in (errors := capsys.readouterr().err) and errors.count("\n") == 1, errors
    for key, value in (("model", 5), ("run", "a\0b"), ("run", "\33[2J"), ("fingerprint", None)):
        pack = write_pack(tmp_path / f"pack-{key}-{type(value).__name__}{len(str(value))}", b"", **{key: value})
        assert main(["runs", "unpack", str(pack)]) == 2 and f"{key} is" in capsys.readouterr().err
    assert not (tmp_path / "run").exists() and not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["settings.json", "checkpoints/rl-000002/policy/policy.json"])
def test_run_with_a_linked_file_is_not_packed(runs, tmp_path, capsys, place):
    run = shutil.copytree(runs / "half", tmp_path / "run")
    (run / place).rename(tmp_path / "outside")
    (run / place).symlink_to(tmp_path / "outside")
    assert main(["runs", "pack", str(run), "--out", str(tmp_path / "pack")]) == 2
    assert "is a symbolic link" in capsys.readouterr().err and not (tmp_path / "pack").exists()
