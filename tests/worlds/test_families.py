"""Tasks and panels of some families only: the same tasks as among all, in the same order."""

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
    """A world whose n-th task is of the family that the n-th letter names; it ends, refuses to go on, or begins again."""

    def tasks(split: str, count: int, seed: int) -> Sequence[Task]:
        if refuses and count > len(letters):
            raise TacitError("no more")
        there = letters * (count // len(letters) + 1) if endless else letters
        return [Task("letters", f"{split}/{i}", letter, split, seed, "") for i, letter in enumerate(there[:count])]

    return Environment("letters", "", 1, lambda: None, tasks, ("test", "train"), ("a", "b", "c"), {})  # type: ignore[arg-type, return-value]


def ids(tasks: Sequence[Task]) -> list[int]:
    return [int(task.id.rpartition("/")[2]) for task in tasks]


def test_without_families_nothing_is_sorted_out() -> None:
    assert ids(of_letters("abcabc").tasks_of("test", 4, 0)) == [0, 1, 2, 3]


def test_picked_out_of_a_world_that_goes_on() -> None:
    assert ids(of_letters("aab", endless=True).tasks_of("test", 3, 0, ["b"])) == [2, 5, 8]


@pytest.mark.parametrize("refuses", [False, True])
def test_as_many_as_a_split_has(refuses: bool) -> None:
    """A split of 8 is asked for 4, then 8; what asks for 16 gets no more."""
    assert ids(of_letters("aabaabab", refuses=refuses).tasks_of("test", 4, 0, ["b"])) == [2, 5, 7]


@pytest.mark.parametrize("families", [(), ("b",)])
def test_a_world_may_give_its_tasks_as_it_likes_and_more_than_were_asked_for(families) -> None:
    world = of_letters("bb", endless=True)
    generous = replace(world, tasks=lambda split, count, seed: (task for task in world.tasks(split, 9, seed)))
    assert ids(generous.tasks_of("test", 4, 0, families)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([{"id": 1}], r"must be a list of Task, and split 'test' has \{'id': 1\}"),
        (
            [Task("letters", "one", "a", "test", 0, "", {"x": x}) for x in (1, 2)],
            r"two tasks of world 'letters', split 'test', have the id 'one' and are not the same: \{'x': 1\} and \{'x': 2\}",
        ),
    ],
)
def test_what_are_no_tasks_is_refused_with_the_reason(tasks, message) -> None:
    with pytest.raises(TacitError, match=message):
        replace(of_letters("ab"), tasks=lambda split, count, seed: tasks).tasks_of("test", 4, 0)
    again = Task("letters", "one", "a", "test", 0, "", {"x": 1})
    assert len(replace(of_letters("ab"), tasks=lambda split, count, seed: [again, again]).tasks_of("test", 4, 0)) == 2


def test_a_wording_that_only_small_models_ask_for_is_explained() -> None:
    with pytest.raises(TacitError, match=r"unknown wording 'terse' of world 'letters'.*Small models read `terse`: .*--wording"):
        of_letters("ab").wording("terse")


def test_a_family_that_never_comes_is_not_waited_for() -> None:
    world = of_letters("ab", endless=True)
    assert world.tasks_of("test", 2, 0, ["c"]) == []
    with pytest.raises(TacitError, match="has no tasks of c here"):
        Panel.of(world, "test", 2, ["c"])


def test_unknown_family_names_the_known_ones() -> None:
    with pytest.raises(TacitError, match=r"family 'haet' of world 'alfworld'. Did you mean 'heat'\? Known: clean, cool"):
        get_environment("alfworld").tasks_of("train", 2, 0, ["haet"])


def test_generated_houses_are_the_ones_among_all() -> None:
    world = get_environment("alfworld")
    among_all = [t for t in world.tasks("unseen", 30, 7) if t.family in ("heat", "pick2")]
    assert list(world.tasks_of("unseen", len(among_all), 7, ("heat", "pick2"))) == among_all and len(among_all) == 10


@pytest.mark.slow
def test_published_games_are_the_ones_among_all(shared_data, monkeypatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(shared_data / "alfworld"))
    world = get_environment("alfworld")
    among_all = [t for t in world.tasks("valid_seen", 140, 3) if t.family == "heat"]
    assert list(world.tasks_of("valid_seen", 140, 3, ("heat",))) == among_all and among_all
    assert Panel.of(world, "valid_seen", 140, ("heat",)).name == f"alfworld/valid_seen/{len(among_all)}[heat]"


def test_every_skill_serves_known_families_and_every_family_has_one() -> None:
    for name in WORLDS:
        world = get_environment(name)
        served = [family for families in world.skill_families.values() for family in families]
        assert sorted(served) == sorted(world.families)
    assert get_environment("alfworld").skill_families["pick"] == ("pick", "pick2")
    assert len(get_environment("alfworld").skill_families) == 5


def test_a_course_of_some_families() -> None:
    settings = TrainSettings(tasks=5, families="heat, cool,heat", evaluation=EvaluationSettings(split="seen", tasks=4))
    found = TaskSets.of(get_environment("alfworld"), settings)
    assert {t.family for t in found.training} == {t.family for t in found.panel.tasks} == {"heat", "cool"}
    assert len(found.training) == 5 and found.panel.name == "alfworld/seen/4[heat,cool]"
