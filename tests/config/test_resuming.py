"""Settings that may change when a run resumes, also per world, and settings that all worlds of a run share."""

from __future__ import annotations

import pytest

from tacit.config.checks import fixed_differences
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError

MIXED = {"world": "alfworld,countdown", "model": "tiny-base"}
OWN = "tacit.worlds.countdown:ENVIRONMENT"


def written(worlds=None, **more):
    return Recipe.from_json({**MIXED, **more, **({"worlds": worlds} if worlds else {})}).to_json()


def test_changeable_settings_may_change_in_one_world():
    before = written({"countdown": {"workers": 1, "max_steps": 9}})
    after = written({"countdown": {"workers": 2, "world_timeout_s": 5.0, "max_steps": 9}}, keep=7, workers=3)
    assert fixed_differences(before, after) == []
    assert fixed_differences(written(), after | {"worlds": {"countdown": {"workers": 2}}}) == [], "no setting was given before"
    assert fixed_differences(after | {"worlds": {"countdown": {"workers": 2}}}, written(keep=7)) == [], "nor is it now"


def test_fixed_settings_are_listed_with_their_path():
    before = written({"countdown": {"evaluation": {"tasks": 9}}})
    after = written({"countdown": {"evaluation": {"tasks": 8}, "prompt": {"history": 1}}, "alfworld": {"max_steps": 3}})
    assert fixed_differences(before, after) == [
        "worlds.alfworld.max_steps=3", "worlds.countdown.evaluation.tasks=8", "worlds.countdown.prompt.history=1",
    ]  # fmt: skip
    assert fixed_differences(before, written()) == ["worlds.countdown.evaluation.tasks=None"]
    assert fixed_differences(written(), written(evaluation={"every": 2})) == ["evaluation.every=2"]


def test_world_name_with_dots():
    place = {"world": f"alfworld,{OWN}"}
    before, after = (written({OWN: {"workers": n, "max_steps": n}}, **place) for n in (1, 2))
    assert fixed_differences(before, after) == [f"worlds.{OWN}.max_steps=2"]


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ({"keep": 1}, "keep"),
        ({"checkpoint-every": 1}, "checkpoint-every"),
        ({"seed": 4}, "seed"),
        ({"sft": {"lr": 0.1}}, "sft.lr"),
        ({"evaluation": {"every": 1}}, "evaluation.every"),
    ],
)
def test_shared_settings_are_refused_in_a_world_table(table, setting):
    with pytest.raises(TacitError, match=rf"\[worlds.countdown\] sets '{setting}', which all worlds of a run share"):
        written({"countdown": table})
