"""`tacit prepare base`, with a model that trains in seconds."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import pytest

from tacit import pretraining
from tacit.cli.main import main
from tacit.config.recipe import Recipe
from tacit.engines.models import bases
from tacit.engines.models.bases import read_manifest
from tacit.engines.models.tiny import TinySettings

SMALL = TinySettings(vocab=512, hidden=32, layers=1, heads=2, kv_heads=2, intermediate=64, context=512)
QUICK = ["--size", "tiny-base", "--steps", "4", "--rows", "8", "--share", "0.5", "--processes", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("bases") / "new" / "mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(bases.BASE_SIZES, "tiny-base", SMALL)
        patch.setattr(pretraining, "EPISODES", {"alfworld": 6, "cooking": 4, "countdown": 4})
        patch.setattr(pretraining, "sample_texts", partial(pretraining.sample_texts, each=150))
        patch.setattr(pretraining, "measure_reading", partial(pretraining.measure_reading, each=8))
        assert main(["prepare", "base", str(place), *QUICK]) == 0
    return place


@pytest.mark.slow
def test_manifest_records_how_the_base_was_made(base):
    about = read_manifest(base)
    assert about["command"] == "tacit prepare base DEST --size tiny-base --steps 4 --rows 8 --share 0.5"
    assert about["episodes"] == {"alfworld": 3, "cooking": 2, "countdown": 2} and about["settings"]["steps"] == 4
    assert about["sizes"]["vocab"] == 512 and about["code"].startswith("0.")
    assert {name.partition(" ")[0] for name in about["documents"]} == {"alfworld", "cooking", "countdown"}
    documents = sum(about["documents"].values())
    assert about["tokens_seen"] == round(4 * 8 * about["tokens"] / documents)
    assert set(about["reads"]) == {"alfworld questions", "cooking questions", "countdown questions"}
    assert about["hash"] == hashlib.sha256(json.dumps(about["files"], sort_keys=True).encode()).hexdigest()


@pytest.mark.slow
def test_only_the_listed_files_are_written(base):
    assert {path.name for path in base.parent.iterdir()} == {"mine"}
    files = {path.name for path in base.iterdir()}
    assert files == {"base.json", *read_manifest(base)["files"]} and "model.safetensors" in files


@pytest.mark.slow
def test_run_from_a_new_base_uses_terse_wording(base, tmp_path, capsys):
    recipe = Recipe.from_json({"world": "countdown", "model": str(base)})
    assert (
        recipe.settings.prompt.wording == "terse"
        and recipe.settings.prompt.style == "bare"
        and not recipe.settings.prompt.admissible
    )
    words = ["train", "--world", "countdown", "--model", str(base), "--out", str(tmp_path / "run"), "--engine.device", "cpu"]
    words += ["--sft.steps", "1", "--sft.tasks", "2", "--sft.batch", "2", "--iterations", "0", "--evaluation.tasks", "2"]
    assert main(words) == 0
    assert "too small for the default prompts" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["model"] == str(base)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "tiny-bass"], "unknown size 'tiny-bass' of a base. Did you mean 'tiny-base'?"),
        (["--share", "0"], "--share 0.0 must be above 0 and at most 1"),
        (["--share", "1.5"], "--share 1.5 must be above 0 and at most 1"),
        (["--steps", "0"], "--steps 0 must be at least 1"),
        (["--rows", "-3"], "--rows -3 must be at least 1"),
        (["--processes", "0"], "--processes 0 must be at least 1"),
        (["--device", "tpu"], "device = 'tpu' must be one of auto, cpu, cuda"),
        (["--gguf", "file"], "unknown flag --gguf"),  # a flag of `prepare smollm2`
    ],
)
def test_prepare_base_refuses_bad_arguments(words, message, tmp_path, capsys):
    assert main(["prepare", "base", str(tmp_path / "new"), *words]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_prepare_base_refuses_an_unusable_destination(tmp_path, capsys):
    assert main(["prepare", "base", str(tmp_path)]) == 2
    assert "exists already; choose a new directory" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["prepare", "base", str(tmp_path / "file" / "new")]) == 2
    assert f"{tmp_path / 'file'} is a file. Name another DEST" in capsys.readouterr().err


def test_prepare_help(capsys):
    for words in ([], ["--help"]):
        assert main(["prepare", *words]) == 0
        assert "usage: tacit prepare COMMAND" in (text := capsys.readouterr().out) and "smollm2" in text and "base" in text
    assert main(["prepare", "base", "--help"]) == 0
    assert "--share" in (text := capsys.readouterr().out) and "--gguf" not in text


def test_prepare_suggests_the_nearest_name(capsys, tmp_path):
    assert main(["prepare", "bases", str(tmp_path / "new")]) == 2
    assert "unknown command 'bases' of `tacit prepare`. Did you mean 'base'?" in capsys.readouterr().err
