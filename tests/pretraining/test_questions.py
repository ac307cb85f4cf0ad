"""Every generated question has the right answer, checked by an independent parser."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from reading_aloud import is_right, places_of, spelled_out

from tacit.core.types import PLAIN, Observation
from tacit.pretraining import list_contexts
from tacit.training.demonstrations import expand_entries, make_questions, random_action
from tacit.worlds import get_environment

FIELDS = {"field", "first", "next", "in", "how", "can"}


def turns(name: str, episodes: int, seed: int):
    """(prompt text, observation) of random play, over all contexts."""
    world, rng = get_environment(name), Random(seed)
    contexts = [context for context, _ in list_contexts(world)]
    for i, task in enumerate(world.tasks("train", episodes, seed)):
        live, reader = world.make(), contexts[i % len(contexts)].begin(task, PLAIN)
        observation, done = live.reset(task), False
        for _ in range(24):
            yield reader.read(observation).text, observation
            action = random_action(rng, observation, bold=True)
            transition = live.step(action)
            reader.record(action, transition)
            observation, done = transition.observation, transition.done
            if done or not observation.actions:
                break


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("name", "kinds"),
    [("alfworld", FIELDS | {"where"}), ("cooking", {"field", "first", "next", "in", "where", "can"}),
     ("countdown", {"field", "how", "can", "arithmetic"})],
)  # fmt: skip
def test_generated_answers_are_right(name, kinds):
    world, rng, counts = get_environment(name), Random(5), Counter()
    for text, observation in turns(name, 140, seed=41):
        for question, answer in make_questions(rng, text, observation, world.questions):
            kind, right = is_right(question, answer, text, observation.actions)
            assert right, f"{text}\n{question}? {answer}"
            counts[kind] += 1
    assert set(counts) == kinds and counts.total() > 3000
    assert min(counts.values()) > 50, counts


def test_yes_and_no_answers_both_occur():
    counts, rng = Counter(), Random(6)
    for text, observation in turns("alfworld", 60, seed=42):
        for question, answer in make_questions(rng, text, observation, None):
            if answer in ("yes", "no"):
                counts["can" if question.startswith("can ") else "in", answer] += 1
    assert len(counts) == 4 and min(counts.values()) > 20, counts


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("drawer 1-3 5, bed 1", ["drawer 1", "drawer 2", "drawer 3", "drawer 5", "bed 1"]),
        ("countertop 1", ["countertop 1"]),
        ("countertop, stoveburner, fridge", ["countertop", "stoveburner", "fridge"]),
        ("cabinet 9-11", ["cabinet 9", "cabinet 10", "cabinet 11"]),
        ("roast lettuce, take red hot pepper", ["roast lettuce", "take red hot pepper"]),
        ("egg 1 at sinkbasin 1, egg 3 at sinkbasin 1", ["egg 1 at sinkbasin 1, egg 3 at sinkbasin 1"]),
        ("op(+, 99, 34); op(*, 97, 34)", ["op(+, 99, 34); op(*, 97, 34)"]),
        ("2 of 3", ["2 of 3"]),
        ("nothing", ["nothing"]),
    ],
)
def test_expand_entries_lists_numbered_names(value, names):
    assert expand_entries(value) == names
    if "(" not in value:
        assert spelled_out(value) == names or value == "2 of 3"


def test_expand_entries_equals_independent_parser_on_random_lists():
    rng = Random(7)
    for _ in range(3000):
        parts, names = [], []
        for kind in rng.sample(["drawer", "cabinet", "garbagecan", "side table"], rng.randint(1, 4)):
            numbers, at = [], 0
            for _ in range(rng.randint(1, 3)):
                first = at + rng.randint(1, 3)
                at = first + rng.choice([0, 0, 1, 4])
                numbers.append(str(first) if at == first else f"{first}-{at}")
                names += [f"{kind} {n}" for n in range(first, at + 1)]
            parts.append(" ".join([kind, *numbers]))
        assert expand_entries(", ".join(parts)) == names == spelled_out(", ".join(parts))


def test_no_where_question_about_empty_places():
    for now in ("drawer 1: nothing >", "fridge 1 open: nothing >"):
        for seed in range(20):
            pairs = make_questions(Random(seed), f"put a pan in fridge.\n{now}", Observation(now, ("look",)), None)
            assert not [question for question, _ in pairs if question.startswith("where")]


def test_no_where_question_about_objects_in_two_places():
    now = "kitchen | table: knife, apple; counter: apple; floor: apple | west"
    questions = {q for s in range(60) for q, _ in make_questions(Random(s), now, Observation(now, ("look",)), None)}
    assert "where knife" in questions and "where apple" not in questions
    assert places_of(now) == {"table": ["knife", "apple"], "counter": ["apple"], "floor": ["apple"]}


def test_empty_prompt_has_no_questions():
    assert make_questions(Random(0), "", Observation(""), None) == []
