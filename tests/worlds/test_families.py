"""Filtering tasks and panels by family keeps the tasks and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.evaluation.panels import Panel
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.setup import TaskSets
from tacit.worlds import WORLDS, get_environment


def of_letters(letters: str, endless: bool = False, refuses: bool = False) -> Environment:
    """A world whose n-th task has the family of the n-th letter. `endless` repeats the letters; `refuses` raises past the
    end."""

    def tasks(split: str, count: int, seed: int) -> Sequence[Task]:
        if refuses and count > len(letters):
            raise TacitError("no more")
        there = letters * (count // len(letters) + 1) if endless else letters
        return [Task("letters", f"{split}/{i}", letter, split, seed, "") for i, letter in enumerate(there[:count])]

    return Environment("letters", "", 1, lambda: None, tasks, ("test", "train"), ("a", "b", "c"), {})  # type: ignore[arg-type, return-value]


def ids(tasks: Sequence[Task]) -> list[int]:
    return [int(task.id.rpartition("/")[2]) for task in tasks]


def test_no_families_keeps_all_tasks() -> None:
    assert ids(of_letters("abcabc").tasks_of("test", 4, 0)) == [0, 1, 2, 3]


def test_family_tasks_are_picked_from_an_endless_world() -> None:
    assert ids(of_letters("aab", endless=True).tasks_of("test", 3, 0, ["b"])) == [2, 5, 8]


@pytest.mark.parametrize("refuses", [False, True])
def test_family_tasks_stop_at_the_end_of_the_split(refuses: bool) -> None:
    """Requests for 4, 8 and 16 tasks of a split of 8; the last one finds no more."""
    assert ids(of_letters("aabaabab", refuses=refuses).tasks_of("test", 4, 0, ["b"])) == [2, 5, 7]


@pytest.mark.parametrize("families", [(), ("b",)])
def test_world_may_return_a_generator_with_extra_tasks(families) -> None:
    world = of_letters("bb", endless=True)
    generous = replace(world, tasks=lambda split, count, seed: (task for task in world.tasks(split, 9, seed)))
    assert ids(generous.tasks_of("test", 4, 0, families)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([{"id": 1}], r"must be a list of Task, but split 'test' has \{'id': 1\}"),
        (
            [Task("letters", "one", "a", "test", 0, "", {"x": x}) for x in (1, 2)],
            r"two different tasks of world 'letters', split 'test', have the id 'one': \{'x': 1\} and \{'x': 2\}",
        ),
    ],
)
def test_invalid_task_lists_are_rejected_with_the_reason(tasks, message) -> None:
    with pytest.raises(TacitError, match=message):
        replace(of_letters("ab"), tasks=lambda split, count, seed: tasks).tasks_of("test", 4, 0)
    again = Task("letters", "one", "a", "test", 0, "", {"x": 1})
    assert len(replace(of_letters("ab"), tasks=lambda split, count, seed: [again, again]).tasks_of("test", 4, 0)) == 2


def test_unknown_terse_wording_error_explains_its_use() -> None:
    with pytest.raises(TacitError, match=r"unknown wording 'terse' of world 'letters'.*Small models read `terse`: .*--wording"):
        of_letters("ab").wording("terse")


def test_family_without_tasks_returns_empty_list() -> None:
    world = of_letters("ab", endless=True)
    assert world.tasks_of("test", 2, 0, ["c"]) == []
    with pytest.raises(TacitError, match="has no tasks of c on this machine"):
        Panel.of(world, "test", 2, ["c"])


def test_unknown_family_error_lists_known_families() -> None:
    with pytest.raises(TacitError, match=r"family 'haet' of world 'alfworld'. Did you mean 'heat'\? Known: clean, cool"):
        get_environment("alfworld").tasks_of("train", 2, 0, ["haet"])


def test_family_filter_selects_generated_houses_in_order() -> None:
    world = get_environment("alfworld")
    among_all = [t for t in world.tasks("unseen", 30, 7) if t.family in ("heat", "pick2")]
    assert list(world.tasks_of("unseen", len(among_all), 7, ("heat", "pick2"))) == among_all and len(among_all) == 10


@pytest.mark.slow
def test_family_filter_selects_published_games_in_order(shared_data, monkeypatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(shared_data / "alfworld"))
    world = get_environment("alfworld")
    among_all = [t for t in world.tasks("valid_seen", 140, 3) if t.family == "heat"]
    assert list(world.tasks_of("valid_seen", 140, 3, ("heat",))) == among_all and among_all
    assert Panel.of(world, "valid_seen", 140, ("heat",)).name == f"alfworld/valid_seen/{len(among_all)}[heat]"


def test_each_family_has_exactly_one_skill() -> None:
    for name in WORLDS:
        world = get_environment(name)
        served = [family for families in world.skill_families.values() for family in families]
        assert sorted(served) == sorted(world.families)
    assert get_environment("alfworld").skill_families["pick"] == ("pick", "pick2")
    assert len(get_environment("alfworld").skill_families) == 5


def test_training_settings_filter_tasks_and_panel_by_family() -> None:
    settings = TrainSettings(tasks=5, families="heat, cool,heat", evaluation=EvaluationSettings(split="seen", tasks=4))
    found = TaskSets.of(get_environment("alfworld"), settings)
    assert {t.family for t in found.training} == {t.family for t in found.panel.tasks} == {"heat", "cool"}
    assert len(found.training) == 5 and found.panel.name == "alfworld/seen/4[heat,cool]"
