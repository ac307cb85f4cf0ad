"""Engines by name: capabilities are checked against the method's needs before anything is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.config.checks import prepare
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.protocols import CAPABILITIES, Engine, ModelSource
from tacit.engines import all_engines, get_engine
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TINY_SIZES

pytestmark = pytest.mark.usefixtures("trusted_code")
HALF = """
from tacit.core.protocols import Engine
from tacit.engines.local.settings import EngineSettings

def load(model, settings):
    raise AssertionError("a refused engine is never loaded")

NARROW = Engine("narrow", "samples and learns", frozenset({"sampling", "learning"}), EngineSettings, load)
"""


def recipe(**settings) -> Recipe:
    return Recipe.from_json({"world": "countdown", "model": "tiny-base", **settings})


def test_local_engine_has_all_capabilities():
    assert get_engine("local").capabilities == set(CAPABILITIES)
    assert {"local", "chat"} <= set(all_engines())


@pytest.mark.parametrize("engine", ["local", "sharded"])
def test_unreachable_hub_is_reported_before_importing_torch(engine, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # read from the environment when it is imported
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    for heavy in ("local", "sharded"):
        monkeypatch.setitem(sys.modules, f"tacit.engines.{heavy}.policy", None)  # importing it would fail
    with pytest.raises(TacitError, match=r"'nobody/nothing'.*hub http://127.0.0.1:1 does not answer"):
        get_engine(engine).load(ModelSource("nobody/nothing"), get_engine(engine).settings())


def test_unknown_engine_lists_known_engines(capsys):
    assert main(["train", "--world", "countdown", "--engine", "lokal"]) == 2
    assert "unknown engine 'lokal'. Did you mean 'local'? Known: chat, local, sharded, tinker." in capsys.readouterr().err


def test_engine_that_cannot_learn_is_refused():
    with pytest.raises(TacitError, match=r"'grpo' needs learning, reference, scoring, which engine 'chat' cannot do.*: local"):
        prepare(recipe(engine="chat", method="grpo"))


@pytest.mark.parametrize(
    ("method", "missing"),
    [
        ({"name": "bipace", "kl": 0.0}, "hidden_states"),
        ({"name": "bipace", "kl": 0.0, "pooling": "mean"}, "hidden_states"),
        ({"name": "ppo", "kl": 0.0}, "values"),
        ({"name": "grpo", "kl": 0.1}, "reference, scoring"),
        ({"name": "reinforce_pp"}, "reference, scoring"),
        ({"name": "grpo", "kl": 0.0, "entropy": 0.1}, "entropy"),
        ({"name": "reuserl+bipace", "kl": 0.0}, "hidden_states"),
    ],
)
def test_engine_that_lacks_a_needed_capability_is_refused(method, missing, tmp_path, monkeypatch):
    (tmp_path / "narrow_engine.py").write_text(HALF)
    engine = f"{tmp_path / 'narrow_engine.py'}:NARROW"
    try:
        with pytest.raises(TacitError, match=f"needs {missing}, which engine 'narrow' cannot do"):
            prepare(recipe(engine=engine, method=method))
        prepare(recipe(engine=engine, method={"name": "grpo", "kl": 0.0}))
    finally:
        sys.modules.pop("narrow_engine", None)
        sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


def test_engine_may_declare_only_known_capabilities():
    with pytest.raises(TacitError, match=r"declares unknown capabilities \['flying'\]"):
        Engine("odd", "", frozenset({"flying"}), EngineSettings, lambda model, settings: None)


def test_value_head_is_enabled_for_ppo():
    prepared = prepare(recipe(method={"name": "ppo"}))
    assert prepared.recipe.engine.value_head and any("value_head" in note for note in prepared.recipe.notes)


def test_unused_or_missing_policy_is_refused():
    with pytest.raises(TacitError, match=r"\[policies.extractor\]: method 'grpo' does not use a policy of that name"):
        prepare(recipe(policies={"extractor": {"model": "tiny-base"}}))
    with pytest.raises(TacitError, match="model '/nowhere/at/all': the directory does not exist"):
        prepare(recipe(policies={"extractor": {"model": "/nowhere/at/all"}}))


def test_second_policy_defaults_to_settings_of_the_first():
    teaching = f"{Path(__file__).parents[1] / 'teaching.py'}:Teaching"
    resolved = recipe(method=teaching, engine={"threads": 1}, policies={"pupil": {"model": "tiny", "tiny": {"layers": 1}}})
    assert resolved.policies["pupil"].tiny.layers == 1 and resolved.policies["pupil"].engine.threads == 1
    own = {"model": "tiny-base", "engine": {"device": "cpu"}}
    other = recipe(model="tiny", method=teaching, engine={"lora_rank": 8}, policies={"pupil": own}).policies["pupil"]
    assert other.tiny is None and (other.engine.lora_rank, other.engine.device) == (8, "cpu"), (
        "omitted settings are those of the first"
    )
    larger = recipe(model="tiny", method=teaching, policies={"pupil": {"model": "tiny-4m"}}).policies["pupil"]
    assert larger.tiny == TINY_SIZES["tiny-4m"]
    assert Recipe.from_json(resolved.to_json()) == resolved
    with pytest.raises(TacitError, match=r"unknown key `size` in \[policies.pupil\]"):
        recipe(method=teaching, policies={"pupil": {"size": 3}})
