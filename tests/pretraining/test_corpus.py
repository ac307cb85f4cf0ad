"""The corpus contains no expert knowledge and no evaluation tasks, and is reproducible."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer

from tacit import pretraining
from tacit.core.types import Observation, Task
from tacit.engines.models.bases import FOLDER
from tacit.evaluation.panels import Panel
from tacit.pretraining import (
    iterate_batches,
    list_contexts,
    make_corpus,
    make_documents,
    sample_texts,
)
from tacit.training.demonstrations import STALE_ACTION_SHARE, random_action
from tacit.worlds import WORLDS, get_environment

TOKENIZER = FOLDER / "tiny-base" / "tokenizer.json"
EPISODES = 12
PLAYABLE = [
    pytest.param(name, marks=pytest.mark.skipif(bool(world.remedy), reason=f"{name} {world.remedy}"))
    for name, world in ((name, get_environment(name)) for name in WORLDS)
    if not world.slow
]
"""random play needs listed actions, which slow worlds do not give at every step"""


class RecordingWorld:
    """A world that records, for each turn, the admissible actions of this and the previous turn, and the action taken."""

    def __init__(self, live, kept):
        self._live, self._kept = live, kept

    def reset(self, task):
        self._before = self._now = self._live.reset(task)
        return self._now

    def step(self, action):
        self._kept.append((self._before.actions, self._now.actions, action))
        transition = self._live.step(action)
        self._before, self._now = self._now, transition.observation
        return transition

    def close(self):
        self._live.close()


def refuse(*_):
    raise AssertionError("an expert was called")


@pytest.mark.parametrize("name", PLAYABLE)
def test_corpus_actions_are_random_admissible_actions_without_experts(name):
    world, kept = get_environment(name), []
    blind = replace(
        world,
        make=lambda: RecordingWorld(world.make(), kept),
        experts=dict.fromkeys(world.experts, refuse),
        example_texts=refuse,
    )
    episodes = EPISODES if world.max_steps > 4 else 10 * EPISODES
    documents = list(make_documents(blind, episodes, 3))
    assert documents == list(make_documents(world, episodes, 3))
    answers = iter([d.answer for d in documents if d.kind in ("action", "noted action")])
    strayed = 0
    for before, now, action in kept:
        assert action in now or action in before
        if action in now:
            assert next(answers) == action
        else:
            strayed += 1
    assert next(answers, None) is None
    assert 0 < strayed < 2 * STALE_ACTION_SHARE * len(kept)


def test_random_action_is_uniform_over_actions_or_over_verbs():
    seen = Observation("", (*(f"go to drawer {n}" for n in range(9)), "look"))
    rng = Random(0)
    timid = Counter(random_action(rng, seen, bold=False) for _ in range(5000))
    assert set(timid) == set(seen.actions) and max(timid.values()) < 650
    bold = Counter(random_action(rng, seen, bold=True).partition(" ")[0] for _ in range(5000))
    assert abs(bold["look"] - bold["go"]) < 300


@pytest.mark.parametrize("name", PLAYABLE)
def test_corpus_tasks_use_train_split_and_separate_seeds(name):
    world, calls = get_environment(name), []

    def tasks(split, count, seed):
        calls.append((split, seed))
        return world.tasks(split, count, seed)

    for seed in (0, 1):
        list(make_documents(replace(world, tasks=tasks), 2, seed))
    (first, one), (second, other) = calls
    assert first == second == "train" and one != other and min(one, other) > 1 << 32  # far from any seed a user would choose


def content(task: Task) -> str:
    """A task without its name and without the order of its numbers."""
    data = dict(task.data)
    if "numbers" in data:
        return json.dumps([sorted(data["numbers"]), data["target"]])
    return json.dumps([task.family, task.goal, data], sort_keys=True, default=str)


# Errands has 576 tasks in one town, used for both training and evaluation, so no base is pretrained on it.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLAYABLE if name.values != ("errands",)])
def test_corpus_contains_no_panel_or_training_tasks(name):
    world, drawn = get_environment(name), []

    def tasks(split, count, seed):
        drawn.extend(world.tasks(split, 400, seed))
        return []

    for shard in range(2):
        list(make_documents(replace(world, tasks=tasks), 400, pretraining.derive(0, "shard", 500 * shard)))
    there = {content(task) for task in drawn}
    closed = name == "webshop"  # the shop has a fixed set of goals: training goals are shared, test goals never
    assert len(drawn) == 800 and len(there) > (700 if closed else 790)
    generated = [s for s in world.splits if not s.startswith(("published", "original", "valid", "human", "boxoban", "adapt"))]
    generated = [s for s in generated if not (closed and s == "train")]
    measured = [task for split in generated for task in Panel.of(world, split, 256).tasks]
    trained = [] if closed else world.tasks("train", 256, 0)
    assert not [task.id for task in (*measured, *trained) if content(task) in there]


@pytest.mark.parametrize("name", PLAYABLE)
def test_documents_depend_only_on_the_seed(name):
    world = get_environment(name)
    documents = [list(make_documents(world, 4, seed)) for seed in (7, 7, 8)]
    assert documents[0] == documents[1] != documents[2]
    assert {d.kind for d in documents[0]} == {"action", "noted action", "questions"}
    assert all(d.prompt and d.answer for d in documents[0])


def test_world_without_tracker_uses_history_contexts():
    world = replace(get_environment("countdown"), tracker=None)
    assert len(list_contexts(world)) == 4 < len(list_contexts(get_environment("countdown")))
    assert list(make_documents(world, 2, 0))


def corpus(processes=1, seed=0, limit=1024, episodes=None):
    return make_corpus(episodes or {"cooking": 4, "countdown": 7}, TOKENIZER, 0, limit, seed, processes)


@pytest.mark.slow
def test_corpus_is_identical_for_any_number_of_processes(monkeypatch):
    monkeypatch.setattr(pretraining, "EPISODES_PER_SHARD", 3)
    alone, together = corpus(), corpus(processes=2)
    assert np.array_equal(alone.tokens, together.tokens) and np.array_equal(alone.starts, together.starts)
    assert alone.documents == together.documents
    assert not np.array_equal(alone.tokens[:500], corpus(seed=1).tokens[:500])


def test_larger_corpus_starts_with_the_smaller_one(monkeypatch):
    monkeypatch.setattr(pretraining, "EPISODES_PER_SHARD", 3)
    small, large = corpus(episodes={"countdown": 3}), corpus(episodes={"countdown": 6})
    assert np.array_equal(large.tokens[: len(small.tokens)], small.tokens) and len(large) > len(small)


def test_row_is_the_tokenized_prompt_and_answer():
    bpe, found = Tokenizer.from_file(str(TOKENIZER)), corpus(episodes={"cooking": 2})
    documents = list(make_documents(get_environment("cooking"), 2, pretraining.derive(0, "shard", 0)))
    assert len(found) == len(documents) == sum(found.documents.values())
    for i, document in enumerate(documents):
        *tokens, end = found.row(i).tolist()
        prompt = bpe.encode(document.prompt, add_special_tokens=False).ids
        answer = bpe.encode(document.answer, add_special_tokens=False).ids
        assert end == 0 and tokens == prompt + answer
        assert bpe.decode(tokens[len(prompt) :]) == document.answer


def test_too_long_documents_are_left_out():
    whole, short = corpus(), corpus(limit=60)
    lengths = np.diff(whole.starts)
    assert 0 < len(short) == (lengths <= 60).sum() < len(whole)
    assert np.diff(short.starts).max() <= 60


def test_batches_are_epochs_without_repetition():
    found = corpus(episodes={"countdown": 3})
    numbers = {found.row(i).tobytes(): i for i in range(len(found))}
    rows = len(found) // 4
    steps = [[numbers[r.tobytes()] for r in step] for step in iterate_batches(found, rows, 8, seed=5)]
    once = [i for step in steps[:4] for i in step]
    # Two documents may be equal, so compare counts: nothing occurs more often than in the corpus.
    there = Counter(numbers[found.row(i).tobytes()] for i in range(len(found)))
    assert all(len(step) == rows for step in steps) and not Counter(once) - there
    again = [[numbers[r.tobytes()] for r in step] for step in iterate_batches(found, rows, 8, seed=5, first=2)]
    assert again == steps[2:] and steps[:4] != steps[4:]
    (all_of_it,) = iterate_batches(found, 10 * len(found), 1, seed=5)
    assert len(all_of_it) == len(found)


def test_tokenizer_texts_cover_every_world():
    texts = sample_texts(["cooking", "countdown"], 0, each=50)
    assert any("recipe" in text for text in texts) and any("op(" in text for text in texts) and len(texts) <= 4 * 50
