"""Errands: rules by hand, success rates by chance and with advice, and hindsight from episodes."""

from __future__ import annotations

from random import Random

import pytest
from every_world import HOSTILE, expert_episode, fingerprint, fingerprint_elsewhere, random_episode
from tracker_episodes import fold

from tacit.core.errors import TacitError
from tacit.core.types import StopReason
from tacit.prompts.history import frame_note
from tacit.rollout.replay import build_trajectory, play_episode
from tacit.worlds import get_environment
from tacit.worlds.errands.world import DOORS, HOME, THINGS, Stranger, door_of, make_task, parse_observation, split_of, town_map

ENVIRONMENT = get_environment("errands")
MUG = make_task("kitchen", "mug")
DOOR = door_of("mug", HOME)
OTHER = next(door for door in DOORS if door != DOOR)


class Scripted:
    def __init__(self, *actions):
        self._actions = list(actions)

    def act(self, observation):
        return self._actions.pop(0)


def episode(task, *actions, seed=0):
    return build_trajectory(task, play_episode(ENVIRONMENT.make(), task, Scripted(*actions), len(actions)), seed)


def won(player, tasks):
    return sum(
        build_trajectory(t, play_episode(ENVIRONMENT.make(), t, player(t), ENVIRONMENT.max_steps)).success for t in tasks
    )


def test_open_and_take_follow_the_rules():
    found = episode(MUG, f"open {DOOR}", "take mug")
    assert found.success and found.stop is StopReason.SUCCESS and len(found) == 2
    assert found.steps[1].observation.text == f"behind {DOOR}: {', '.join(town_map(HOME)[DOOR])} | here it is"
    late = episode(MUG, f"open {OTHER}", f"open {DOOR}", "take mug")
    assert late.success and len(late) == 3
    refused = episode(MUG, "take mug", f"open {OTHER}", f"take {town_map(HOME)[OTHER][0]}")
    assert [s.effective for s in refused.steps] == [False, True, False] and not refused.success
    assert parse_observation(refused.final.text) == (OTHER, town_map(HOME)[OTHER], "that is not wanted")
    assert parse_observation(refused.steps[1].observation.text) == ("", (), "that is not here")


def test_town_map_has_eight_doors_and_differs_between_towns():
    for number in (HOME, 1, 2):
        kept = [thing for things in town_map(number).values() for thing in things]
        assert tuple(town_map(number)) == DOORS and sorted(kept) == sorted(THINGS) and len(kept) == 24
    assert town_map(1) != town_map(HOME) != town_map(2)


def test_success_rate_without_advice_and_with_right_or_wrong_advice():
    """Without advice the agent opens 2 of 8 doors. The right entry always wins; a wrong one costs a door."""
    tasks = ENVIRONMENT.tasks("elsewhere", 1200, 0)

    def oracle(task):
        return Stranger(task, f"{task.data['thing']} behind {door_of(task.data['thing'], task.data['town'])}")

    def misled(task):
        right = door_of(task.data["thing"], task.data["town"])
        return Stranger(task, f"{task.data['thing']} behind {next(d for d in DOORS if d != right)}")

    assert 0.21 < won(Stranger, tasks) / 1200 < 0.29, "2 of 8 doors"
    assert won(oracle, tasks) == 1200
    assert 0.11 < won(misled, tasks) / 1200 < 0.18, "1 of 7 doors"
    assert won(ENVIRONMENT.expert(), ENVIRONMENT.tasks("test", 96, 0)) == 96


def test_train_and_test_share_the_town_but_no_errand():
    train, test, elsewhere = (
        ENVIRONMENT.tasks(split, 10_000 if split != "elsewhere" else 500, 3) for split in ENVIRONMENT.splits
    )
    assert (len(train), len(test)) == (288, 96)
    assert not {t.goal for t in train} & {t.goal for t in test}
    for split, tasks in (("train", train), ("test", test)):
        assert {t.data["thing"] for t in tasks} == set(THINGS), "both splits use all things"
        assert all(t.data["town"] == HOME and t.split == split for t in tasks)
    towns = [t.data["town"] for t in elsewhere]
    assert HOME not in towns and len(set(towns)) == 500
    assert ENVIRONMENT.tasks("elsewhere", 50, 3) == elsewhere[:50] and ENVIRONMENT.tasks("test", 50, 3) == test[:50]
    assert split_of("kitchen", "apple") == "test"
    with pytest.raises(TacitError, match=r"Did you mean 'test'"):
        ENVIRONMENT.tasks("tets", 1, 0)


def test_hindsight_names_the_door_where_the_object_was_seen():
    assert ENVIRONMENT.hindsight(episode(MUG, f"open {DOOR}", "take mug")).episode == f"mug behind {DOOR}"
    assert ENVIRONMENT.hindsight(episode(MUG, f"open {DOOR}", f"open {OTHER}", "dance")).episode == f"mug behind {DOOR}"
    assert ENVIRONMENT.hindsight(episode(MUG, f"open {OTHER}", "take mug", "dance")).episode == ""


def test_failure_labels_skills_and_tracker_rewards():
    def skills(*actions):
        return ENVIRONMENT.alphabet(episode(MUG, *actions))

    seen = episode(MUG, f"open {DOOR}", "dance", "dance")
    assert ENVIRONMENT.failure(seen) == "not_taken"
    assert ENVIRONMENT.failure(episode(MUG, f"open {OTHER}", "dance")) == "not_found"
    assert ENVIRONMENT.failure(episode(MUG, "dance")) == "unreadable"
    assert skills(f"open {OTHER}", f"open {OTHER}", "take bell", "take mug", "dance")[:2] == ("OPEN-NEW", "OPEN-AGAIN")
    state, signals = fold(MUG, [f"open {OTHER}", f"open {OTHER}", f"open {DOOR}", "take mug"])
    assert state.phase == "done" and sum(s.get("progress", 0.0) for s in signals) == pytest.approx(2.04)
    assert signals[1]["error"] == pytest.approx(0.1) and len(ENVIRONMENT.tracker.render(state)) < 160
    _, signals = fold(MUG, ["dance", "take mug"])
    assert [s["error"] for s in signals] == pytest.approx([0.3, 0.2])


def test_hostile_actions_are_ineffective_and_episodes_are_deterministic():
    for task in ENVIRONMENT.tasks("train", 20, 1):
        assert expert_episode(ENVIRONMENT, task)[1].success
        random_episode(ENVIRONMENT, task, Random(task.id))
    world = ENVIRONMENT.make()
    world.reset(MUG)
    assert all(not world.step(text).effective for text in HOSTILE)
    assert fingerprint("errands", "train") == fingerprint_elsewhere("errands", "train", 5)
    with pytest.raises(TacitError, match="is not an errand"):
        world.reset(get_environment("countdown").tasks("train", 1, 0)[0])


def test_frame_note_wraps_text_in_note_tags():
    assert frame_note(f"mug behind {DOOR}") == f"<note>\nmug behind {DOOR}\n</note>"
