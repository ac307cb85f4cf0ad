"""Several worlds in one run: notation, division of groups, and per-world settings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scripted import ScriptedPolicy, solve_countdown

from tacit.cli.main import main
from tacit.config.checks import prepare
from tacit.config.recipe import Recipe, read_mixture
from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.evaluation.scores import over_worlds
from tacit.methods import get_method
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop, divide_groups, draw_tasks
from tacit.worlds import get_environment


def test_shares_are_equal_by_default():
    assert read_mixture("alfworld") == {"alfworld": 1.0}
    assert read_mixture("alfworld, countdown") == {"alfworld": 0.5, "countdown": 0.5}
    assert read_mixture("path/to/file.py:WORLD=0.25,countdown=0.75") == {"path/to/file.py:WORLD": 0.25, "countdown": 0.75}
    assert read_mixture("code+tests=hidden") == {"code+tests=hidden": 1.0}
    assert read_mixture("code+tests=hidden=0.5,countdown=0.5") == {"code+tests=hidden": 0.5, "countdown": 0.5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("alfworld=0.5,countdown=0.4", "add up to 0.9, not to 1"),
        ("alfworld=0.5,countdown", "no share for countdown"),
        ("alfworld=0.5,countdown=half", "the share 'half' must be"),
        ("alfworld=1.5,countdown=-0.5", "the share '1.5' must be"),
        ("alfworld,alfworld", "names 'alfworld' twice"),
        ("alfworld,,countdown", "an empty name"),
    ],
)
def test_invalid_shares_are_refused(text, reason, capsys):
    with pytest.raises(TacitError, match=reason):
        read_mixture(text)
    assert main(["train", "--world", text]) == 2 and reason in capsys.readouterr().err


def test_every_world_gets_its_share_of_groups():
    assert divide_groups(8, [1.0], 1) == [8]
    assert divide_groups(8, [0.75, 0.25], 3) == [6, 2]
    counts = np.array([divide_groups(4, [0.6, 0.3, 0.1], n) for n in range(1, 11)])
    assert (counts.sum(axis=1) == 4).all() and counts.sum(axis=0).tolist() == [24, 12, 4]
    assert divide_groups(1, [0.5, 0.5], 1) != divide_groups(1, [0.5, 0.5], 2), "one group an iteration: they take turns"


def test_task_pool_is_shuffled_per_epoch():
    """Every task is drawn once per epoch, in a new order each time."""
    tasks = np.concatenate([draw_tasks(200, 8 * n, 8, seed=3) for n in range(25)])
    assert sorted(tasks) == list(range(200)), "each once"
    again = np.concatenate([draw_tasks(200, 200 + 8 * n, 8, seed=3) for n in range(25)])
    assert sorted(again) == list(range(200)) and list(again) != list(tasks), "then all of them in another order"
    assert len(draw_tasks(5, 3, 4, seed=0)) == 4, "an epoch may end in the middle of an iteration"


def collector(name: str, share: float) -> Collector:
    world = get_environment(name)
    settings = get_method("reuserl")(kl=0.0).with_prompt(wording="terse", style="bare", admissible=False, history=1)
    method = settings.build(world)
    return Collector(method, world.tasks("train", 16, 0), InProcessPool(world.make), 16, 4, name, share)


def test_one_iteration_in_two_worlds():
    policy = ScriptedPolicy(
        lambda prompt, seed: solve_countdown(prompt) if set(prompt) <= set("0123456789 >!:op(+-*/,)\n") else "look"
    )
    loop = Loop([collector("countdown", 0.75), collector("alfworld", 0.25)], policy, iterations=4)
    done = loop.iterate(1)
    worlds = [group.task.world for group in done.played]
    assert worlds.count("countdown") == 12 and worlds.count("alfworld") == 4
    assert done.metrics["countdown/success"] == 1.0 and done.metrics["alfworld/success"] == 0.0
    assert done.metrics["success"] == 0.75 and done.metrics["countdown/dictionary_size"] >= 5
    ((batch, _, _),) = policy.updates
    assert len(set(batch.group.tolist())) == 16 and len(set(batch.trajectory.tolist())) == 16 * 8, "numbered apart"
    assert loop.drawn == {"countdown": 12, "alfworld": 4}
    assert all(f"seconds_{phase}" in done.metrics for phase in ("rollout", "credit", "scoring", "update", "companions"))


def test_rollouts_may_be_collected_ahead_of_updates():
    policy = ScriptedPolicy(lambda prompt, seed: solve_countdown(prompt) if seed % 2 else "hm")
    ahead, behind = (Loop([collector("countdown", 1.0)], policy, iterations=2) for _ in range(2))
    first, second = ahead.collect(1), ahead.collect(2)
    overlapped = [ahead.learn(first), ahead.learn(second)]
    in_turn = [behind.iterate(1), behind.iterate(2)]
    for one, other in zip(overlapped, in_turn, strict=True):
        assert [g.task.id for g in one.played] == [g.task.id for g in other.played]


def test_batches_with_different_columns_cannot_be_joined():
    one = Batch.imitation([np.arange(3)], [np.arange(2)])
    with pytest.raises(ValueError, match="other columns"):
        Batch.concatenate([one, one.with_column("returns", "row", np.zeros(1))])


def test_per_world_settings_apply_to_that_world_only():
    document = {
        "world": "alfworld=0.5,countdown=0.5", "model": "tiny-base", "method": "grpo", "max_steps": 9,
        "worlds": {"countdown": {"max_steps": 5, "evaluation": {"tasks": 7}, "prompt": {"history": 0}}},
    }  # fmt: skip
    prepared = prepare(Recipe.from_json(document))
    house, puzzle = prepared.recipe.places
    assert (house.train.max_steps, house.train.evaluation.split, house.settings.prompt.history) == (9, "unseen", None)
    assert (puzzle.train.max_steps, puzzle.train.evaluation.split, puzzle.settings.prompt.history) == (5, "test", 0)
    assert puzzle.train.evaluation.tasks == 7 and house.train.evaluation.tasks == 128
    stored = json.loads(json.dumps(prepared.recipe.to_json()))
    assert Recipe.from_json(stored).places == prepared.recipe.places, "as it is written down, so it is read"
    assert prepared.recipe.at("countdown").train.max_steps == 5


@pytest.mark.parametrize(
    ("worlds", "reason"),
    [
        ({"cooking": {}}, "a world that the run does not use"),
        ({"countdown": {"speed": 3}}, "unknown key `speed`"),
        ({"countdown": {"method": {"clip_high": 0.3}}}, "share one update"),
        ({"countdown": {"split": "seen"}}, "unknown split 'seen' of world 'countdown'"),
        ({"countdown": {"evaluation": {"split": "unseen"}}}, "unknown split 'unseen' of world 'countdown'"),
    ],
)
def test_bad_per_world_settings_are_refused(worlds, reason):
    with pytest.raises(TacitError, match=reason):
        prepare(Recipe.from_json({"world": "alfworld,countdown", "model": "tiny-base", "worlds": worlds}))


def test_per_world_prompt_settings_override_small_model_defaults():
    own = {"countdown": {"prompt": {"style": "tags", "wording": "full"}}}
    document = {"world": "alfworld,countdown", "model": "tiny-base", "worlds": own}
    house, puzzle = prepare(Recipe.from_json(document)).recipe.places
    assert (puzzle.settings.prompt.style, puzzle.settings.prompt.wording) == ("tags", "full")
    assert (house.settings.prompt.style, house.settings.prompt.wording) == ("bare", "terse")


def test_one_world_under_two_names_is_refused():
    twice = "countdown,tacit.worlds.countdown:ENVIRONMENT"
    with pytest.raises(TacitError, match="names one world twice: countdown, countdown"):
        prepare(Recipe.from_json({"world": twice, "model": "tiny-base"}))


def test_mean_over_worlds_ignores_panel_size():
    def score(world, success, episodes):
        known = {"stage": "rl", "step": 3, "panel": f"{world}/test/{episodes}", "world": world}
        return {**known, "success": success, "interval": [success - 0.1, success + 0.1], "episodes": episodes}

    both = over_worlds([score("a", 0.8, 10), score("b", 0.4, 90)])
    assert both["success"] == pytest.approx(0.6) and both["episodes"] == 100
    assert both["interval"] == pytest.approx([0.6 - 0.1 / 2**0.5, 0.6 + 0.1 / 2**0.5])
    assert both["worlds"]["b"]["success"] == 0.4 and both["panel"] == "a/test/10 + b/test/90"
    assert over_worlds([score("a", 0.8, 10)]) == score("a", 0.8, 10)


def test_world_options():
    flags = {("world", "tests"): "hidden", ("world",): "code"}
    recipe = Recipe.resolve(None, flags)
    assert recipe.world == "code+tests=hidden" and str(recipe.out) == "runs/code-grpo-0"
    assert Recipe.from_json(recipe.to_json()).world == recipe.world
    assert (
        Recipe.from_json({"world": {"name": "code+tests=hidden+sandbox=none", "tests": "shown"}}).world
        == "code+tests=shown+sandbox=none"
    )
    with pytest.raises(TacitError, match=r"no name.*--world code"):
        Recipe.from_json({"world": {"tests": "hidden"}})
    with pytest.raises(TacitError, match="several worlds are named"):
        Recipe.from_json({"world": {"name": "code,countdown", "tests": "hidden"}})


def test_task_folder_is_stored_as_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    document = Recipe.from_json({"world": "code+folder=mine+tests=hidden"}).to_json()
    assert document["world"] == f"code+folder={tmp_path}/mine+tests=hidden"
