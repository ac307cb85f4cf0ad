"""Generated ALFWorld games are solvable, deterministic, in one split only, and follow the rules of published games."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.worlds import get_environment
from tacit.worlds.alfworld import PUBLISHED_KINDS, example_texts
from tacit.worlds.alfworld.published import load_games
from tacit.worlds.alfworld.skills import Oracle
from tacit.worlds.alfworld.tasks import (
    CAPACITY,
    HOUSE_SPLITS,
    KEPT_BACK,
    LAMP,
    PLANS,
    ROOMS,
    SENTENCES,
    fits,
    floor_plans,
    held_out_places,
    iterate_tasks,
    traits,
)
from tacit.worlds.alfworld.tracker import read_goal
from tacit.worlds.alfworld.world import FAMILIES, NOTHING_HAPPENS, AlfWorld, Game

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = get_environment("alfworld")
MANY = 900
FIRST_TWENTY = {"train": "683af0d488754bad", "seen": "7932291880239fef", "unseen": "72b6387d3c9766b0"}
"""digests of the first twenty games; if they change, earlier scores on these splits are no longer comparable"""

VERBS = {"clean", "close", "cool", "examine", "go", "heat", "help", "inventory", "look", "move", "open", "slice", "take", "use"}

Layout = tuple[tuple[str, int], ...]


@cache
def many(split: str) -> tuple[tuple[Task, Game], ...]:
    return tuple((task, game_of(task)) for task in ENVIRONMENT.tasks(split, MANY, 0))


def game_of(task: Task) -> Game:
    return Game.from_data(json.loads(json.dumps(task.data["game"])))


def content(task: Task) -> str:
    """The game without its goal sentence: two sentences for one goal are the same game."""
    return json.dumps({key: part for key, part in task.data["game"].items() if key != "sentence"}, sort_keys=True)


def layout(game: Game) -> Layout:
    return tuple(sorted(Counter(receptacle.kind for receptacle in game.receptacles).items()))


def goal_of(game: Game) -> tuple[str, str]:
    return game.goal.kind, game.goal.target


def sentence_of(way: str, game: Game) -> str:
    return way.format(kind=game.goal.kind, target=game.goal.target)


def lying(game: Game, targets: bool = False) -> set[tuple[str, str]]:
    """(object kind, receptacle kind) pairs of portable objects at the start; `targets` keeps only the goal's object kind"""
    return {
        (thing.kind, game.receptacles[r].kind)
        for thing in game.things
        for r in thing.receptacles
        if "pickupable" in thing.traits and (thing.kind == game.goal.kind or not targets)
    }


def play(task: Task) -> int:
    """Steps the oracle takes to win; fails if the step limit is exceeded."""
    world, oracle = AlfWorld(), Oracle(task)
    observation = world.reset(task)
    assert not world.household.won, task.id
    for number in range(1, ENVIRONMENT.max_steps + 1):
        answer = world.step(oracle.act(observation))
        if answer.done:
            assert answer.success and answer.score == 1.0
            return number
        observation = answer.observation
    pytest.fail(f"{task.id} was not solved")


def spread(count: int) -> Iterator[Task]:
    """A third of the games from each split."""
    for split in HOUSE_SPLITS:
        yield from islice(iterate_tasks(split, seed=11), count // 3 + 1)


@pytest.mark.slow
def test_oracle_solves_generated_games_within_14_steps():
    steps = [play(task) for task in spread(360)]
    assert max(steps) <= 14


@pytest.mark.slow
def test_thousands_of_games_are_solvable_and_unique():
    seen_before: dict[bytes, str] = {}
    for task in spread(3_000):
        play(task)
        digest = hashlib.sha256(content(task).encode()).digest()
        assert digest not in seen_before, (task.id, seen_before[digest])
        seen_before[digest] = task.id
    assert len(seen_before) >= 3_000


@pytest.mark.slow
def test_games_and_ids_are_unique_within_and_across_splits():
    contents = [content(task) for split in HOUSE_SPLITS for task, _ in many(split)]
    assert len(set(contents)) == len(contents) == 3 * MANY
    ids = [task.id for split in HOUSE_SPLITS for task, _ in many(split)]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_train_and_seen_share_layouts_and_goals_but_not_combinations():
    train, seen = ([game for _, game in many(split)] for split in ("train", "seen"))
    assert not {(layout(g), g.goal) for g in train} & {(layout(g), g.goal) for g in seen}
    known_layouts, known_pairs = {layout(g) for g in train}, {goal_of(g) for g in train}
    assert sum(layout(g) in known_layouts for g in seen) > 0.9 * MANY
    assert sum(goal_of(g) in known_pairs for g in seen) > 0.8 * MANY


@pytest.mark.slow
def test_unseen_layouts_goals_and_places_never_occur_in_train():
    train, unseen = ([game for _, game in many(split)] for split in ("train", "unseen"))
    assert not {layout(g) for g in train} & {layout(g) for g in unseen}
    assert not {goal_of(g) for g in train} & {goal_of(g) for g in unseen}
    trained = set().union(*(lying(g) for g in train))
    for game in unseen:
        targets = lying(game, targets=True)
        assert targets and not targets & trained, game.sentence
    # a goal pair of one split is never an initial position in the other
    assert not {goal_of(g) for g in unseen} & trained
    assert not {goal_of(g) for g in train} & set().union(*(lying(g, targets=True) for g in unseen))


@pytest.mark.parametrize("split", ["train", "seen"])
def test_train_and_seen_avoid_held_out_places(split):
    for _, game in many(split):
        kind, target = goal_of(game)
        assert target not in held_out_places(kind)
        assert all(place not in held_out_places(kind) for kind, place in lying(game))


def test_held_out_places_never_include_the_usual_place():
    for room in ROOMS.values():
        for kind, belonging in room.belongings.items():
            options = {place for r in ROOMS.values() if kind in r.belongings for place in r.furniture if fits(place, kind)}
            odd = held_out_places(kind) - {LAMP}
            assert odd <= options and next(iter(belonging.places)) not in odd
            assert (len(odd) >= 2) if len(options) > 3 else len(odd) == len(options) // 2, kind
            assert len(options - odd) >= 2 or len(options) < 4


def test_floor_plans_are_unique_and_a_fixed_share_is_held_out():
    plans = [plan for room in ROOMS for plan in floor_plans(room)]
    layouts = [tuple((kind, len(indices)) for kind, indices in plan.of_kind.items()) for plan in plans]
    assert len(set(layouts)) == len(layouts) == PLANS * len(ROOMS)
    assert (
        sum(plan.number % KEPT_BACK == KEPT_BACK - 1 for room in ROOMS for plan in floor_plans(room))
        == len(layouts) // KEPT_BACK
    )
    for room in ROOMS:
        for plan in floor_plans(room):
            assert len(plan.receptacles) not in {receptacle.location for receptacle in plan.receptacles}


@pytest.mark.parametrize("split", HOUSE_SPLITS)
def test_tasks_are_identical_across_processes_and_match_pinned_digests(split):
    here = ENVIRONMENT.tasks(split, 20, 3)
    code = (
        "import hashlib; from tacit.worlds import get_environment as g\n"
        f"print(hashlib.sha256(repr(g('alfworld').tasks({split!r}, 20, 3)).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    digest = hashlib.sha256(repr(here).encode()).hexdigest()
    assert done.stdout.strip() == digest
    assert digest[:16] == FIRST_TWENTY[split]
    assert ENVIRONMENT.tasks(split, 33, 3)[:20] == here
    assert {content(task) for task in here}.isdisjoint(content(task) for task in ENVIRONMENT.tasks(split, 20, 4))


def test_each_block_of_six_tasks_has_every_family():
    for split in HOUSE_SPLITS:
        families = [task.family for task, _ in many(split)]
        for start in range(0, MANY, len(FAMILIES)):
            assert sorted(families[start : start + len(FAMILIES)]) == sorted(FAMILIES)
        assert len({tuple(families[start : start + 6]) for start in range(0, MANY, 6)}) > 50


def test_train_games_vary_in_layout_goal_and_size():
    games = [game for _, game in many("train")]
    assert len({layout(g) for g in games}) > 0.8 * (PLANS - PLANS // KEPT_BACK) * len(ROOMS)
    assert len({goal_of(g) for g in games}) > 200
    assert {g.goal.family for g in games} == set(FAMILIES)
    assert len({g.goal.kind for g in games}) >= 50 and len({g.goal.target for g in games}) >= 18
    sizes = [len(g.receptacles) for g in games]
    assert min(sizes) < 12 and max(sizes) > 35
    assert 20 < sum(len(g.things) for g in games) / MANY < 40
    copies = Counter(sum(t.kind == g.goal.kind for t in g.things) for g in games)
    assert set(copies) == {1, 2, 3, 4}
    for family in FAMILIES:
        ways = Counter(way for g in games for way in SENTENCES[family] if g.sentence == sentence_of(way, g))
        assert len(ways) == 2 and min(ways.values()) > MANY / 6 / 3


def test_goal_sentences_parse_to_the_goal_of_the_game():
    for split in HOUSE_SPLITS:
        for task, game in many(split):
            assert read_goal(task.goal) == game.goal
            assert task.goal in [sentence_of(way, game) for way in SENTENCES[task.family]]


def test_listed_commands_are_effective_and_cover_every_verb():
    rng = random.Random(0)
    verbs: Counter[str] = Counter()
    for task in ENVIRONMENT.tasks("train", 60, 5):
        world = AlfWorld()
        observation = world.reset(task)
        for _ in range(60):
            by_verb: dict[str, list[str]] = {}
            for command in observation.actions:
                by_verb.setdefault(command.split()[0], []).append(command)
            verb = rng.choice(sorted(by_verb))
            answer = world.step(rng.choice(by_verb[verb]))
            assert answer.effective and answer.observation.text != NOTHING_HAPPENS
            verbs[verb] += 1
            observation = answer.observation
    assert set(verbs) == VERBS


def test_room_tables_are_consistent():
    for room in ROOMS.values():
        for kind, belonging in room.belongings.items():
            able = traits(kind)
            assert set(belonging.places) <= set(room.furniture), kind
            if "pickupable" in able and kind != "teddybear":  # the domain has no receptacle for it
                assert all(fits(place, kind) for place in belonging.places), kind
        assert set(room.furniture) <= set(CAPACITY)


def test_rules_and_sentences_match_published_games(shared_data):
    ours = {kind for room in ROOMS.values() for kind in room.belongings}
    games = [game_of(task) for task in load_games(shared_data / "alfworld" / "valid_seen.jsonl.xz").tasks]
    assert len(games) == 140
    for game in games:
        assert game.sentence in [sentence_of(way, game) for way in SENTENCES[game.goal.family]]
        kinds = {thing.kind for thing in game.things} & ours
        places = {receptacle.kind for receptacle in game.receptacles}
        expected = {(place, kind) for place in places for kind in kinds if fits(place, kind)}
        assert {pair for pair in game.fits if pair[1] in kinds} == expected
        for thing in game.things:
            if thing.kind in ours:
                assert thing.traits - {"cool"} == traits(thing.kind), thing.name


def test_generated_splits_need_no_data_and_bad_requests_are_rejected(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert ENVIRONMENT.splits == ("train", "seen", "unseen", "published_train", "valid_seen", "valid_unseen")
    assert len(ENVIRONMENT.tasks("train", 7, 0)) == 7 and not ENVIRONMENT.tasks("train", 0, 0)
    with pytest.raises(TacitError, match="zero or more"):
        ENVIRONMENT.tasks("train", -1, 0)
    with pytest.raises(TacitError, match=r"unsen.*unseen"):
        ENVIRONMENT.tasks("unsen", 1, 0)
    with pytest.raises(TacitError, match="generated split"):
        ENVIRONMENT.tasks("valid_seen", 1, 0)


def test_speed_benchmark_plays_generated_houses_without_data():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("ALFWORLD_DATA", None)
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "environments.py"),
        "--world",
        "alfworld",
        "--seconds",
        "0.1",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "[train]" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["alfworld"]["steps_per_s"] > 0


def test_example_texts_name_every_kind_and_depend_only_on_seed():
    texts = example_texts(0)
    assert texts == example_texts(0) != example_texts(1) and all(texts)
    words = Counter(word for text in texts for word in text.replace(",", "").split())
    kinds = {*PUBLISHED_KINDS, *(kind for room in ROOMS.values() for kind in (*room.belongings, *room.furniture))}
    assert min(words[kind] for kind in kinds) >= 100
    assert sum(map(len, texts)) < 5_000_000


@pytest.mark.slow
def test_example_texts_contain_all_names_of_published_games(shared_data):
    words = set(" ".join(example_texts(0)).replace(",", "").split())
    for task in load_games(shared_data / "alfworld" / "valid_seen.jsonl.xz").tasks:
        game = game_of(task)
        assert {thing.kind for thing in game.things} | {receptacle.kind for receptacle in game.receptacles} <= words
