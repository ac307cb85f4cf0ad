"""A calibration belongs to a model, a world and a context. A started run depends only on its own settings."""

from __future__ import annotations

import json
import shutil

import pytest

from tacit.config.checks import open_world, prepare
from tacit.config.recipe import Recipe
from tacit.config.resources import calibration_path
from tacit.engines.models.bases import FOLDER, base_named


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def recipe(world: str = "countdown", model: str = "tiny", **prompt) -> Recipe:
    return Recipe.from_json({"world": world, "model": model, "method": "bipace", "prompt": prompt})


def calibrate(for_: Recipe, layer: int, epsilon: float) -> None:
    """Write the file that `tacit calibrate` writes."""
    place = calibration_path(prepare(for_).recipe, open_world(for_.world))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"embedders": {"actor": {"layer": layer, "pooling": "mean", "epsilon": epsilon}}}))


def geometry(of: Recipe) -> tuple:
    settings = prepare(of).recipe.settings
    return settings.layer, settings.pooling, settings.epsilon


def test_calibration_is_used_only_in_its_world_context_and_model():
    calibrate(recipe("countdown"), -1, 0.33)
    assert geometry(recipe("countdown")) == (-1, "mean", 0.33)
    assert geometry(recipe("cooking")) == (-2, "last", 0.10), "the published one"
    assert geometry(recipe("countdown", history=0)) == (-2, "last", 0.10), "another context"
    assert geometry(recipe("countdown", model="tiny-base")) == (-2, "last", 0.10), "another model"


def test_models_of_equal_size_have_separate_calibrations(tmp_path):
    for name, weights in (("first/model", b"1" * 100), ("second/model", b"2" * 100)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps({"num_hidden_layers": 4, "vocab_size": 50_000}))
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        (tmp_path / name / "tokenizer.json").write_text("{}")
    first, second = (recipe(model=str(tmp_path / name)) for name in ("first/model", "second/model"))
    calibrate(first, -1, 0.33)
    assert geometry(first) == (-1, "mean", 0.33) and geometry(second) == (-2, "last", 0.10)
    (tmp_path / "moved").mkdir()
    (tmp_path / "first").rename(tmp_path / "moved" / "first")
    assert geometry(recipe(model=str(tmp_path / "moved" / "first" / "model"))) == (-1, "mean", 0.33), "a directory may be moved"


def test_copy_of_a_packaged_base_is_recognized(tmp_path):
    calibrate(recipe(model="tiny-base"), -1, 0.33)
    copy = shutil.copytree(FOLDER / "tiny-base", tmp_path / "of-my-own")
    assert base_named(str(copy)) == "tiny-base" and geometry(recipe(model=str(copy))) == (-1, "mean", 0.33)
    notes = "\n".join(prepare(recipe(model=str(copy))).recipe.notes)
    assert "of-my-own was not trained on any task and there is no imitation" in notes
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert base_named(str(copy)) == "" and geometry(recipe(model=str(copy))) == (-2, "last", 0.10), "other weights"


def test_renamed_model_directory_keeps_its_calibration(tmp_path):
    place = tmp_path / "before"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"num_hidden_layers": 4, "vocab_size": 50_000}))
    (place / "model.safetensors").write_bytes(b"1" * 100)
    (place / "tokenizer.json").write_text("{}")
    calibrate(recipe(model=str(place)), -1, 0.33)
    after = place.rename(tmp_path / "after")
    assert geometry(recipe(model=str(after))) == (-1, "mean", 0.33)
    calibrate(recipe(model=str(after)), -3, 0.05)
    assert geometry(recipe(model=str(after))) == (-3, "mean", 0.05), "what is found later takes its place"


def test_started_run_keeps_its_geometry_after_a_new_calibration():
    calibrate(recipe(), -1, 0.33)
    written = prepare(recipe()).recipe.to_json()
    calibrate(recipe(), -3, 0.05)
    assert geometry(Recipe.from_json(written)) == (-1, "mean", 0.33)
    assert geometry(recipe()) == (-3, "mean", 0.05)
    calibration_path(prepare(recipe()).recipe, open_world("countdown")).unlink()
    assert geometry(Recipe.from_json(written)) == (-1, "mean", 0.33)
