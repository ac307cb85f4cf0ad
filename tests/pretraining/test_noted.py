"""Notes in the corpus: they name actions, are sometimes wrong, and never guide the choice of action."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

import pytest

from tacit.core.types import Prompt
from tacit.pretraining import add_note, make_documents
from tacit.prompts.history import CLOSE, OPEN
from tacit.worlds import get_environment

POSSIBLE = ("go to drawer 1", "go to drawer 2", "take apple 1 from table 1")


def note_of(text: str) -> str:
    return text.partition(f"{OPEN}\n")[2].partition(f"\n{CLOSE}")[0]


def test_half_of_the_notes_name_the_action_taken():
    rng, kinds = Random(0), Counter()
    for _ in range(4000):
        action = rng.choice(POSSIBLE)
        prompt = add_note(rng, Prompt("task", "now", "act:"), action, POSSIBLE, ("open fridge 1", "go to drawer 1"))
        if prompt.step_note:
            note = note_of(prompt.text)
            kinds["true" if note == action else "idle" if note in POSSIBLE else "impossible"] += 1
    total = sum(kinds.values())
    assert 0.45 < kinds["true"] / total < 0.55 and 0.2 < kinds["idle"] / total < 0.3
    assert kinds["impossible"] > 0.2 * total and 0.6 < total / 4000 < 0.8, "the rest stand after the task"


@pytest.mark.parametrize("name", ["alfworld", "cooking", "countdown"])
def test_corpus_has_notes_and_is_reproducible(name):
    world = get_environment(name)
    documents = list(islice(make_documents(world, 40, 0), 1200))
    with_note = [d for d in documents if d.kind == "noted action"]
    actions = [d for d in documents if d.kind == "action"]
    assert 0.2 < len(with_note) / (len(with_note) + len(actions)) < 0.4
    assert all(OPEN in d.prompt for d in with_note) and not any(OPEN in d.prompt for d in actions)
    assert documents == list(islice(make_documents(world, 40, 0), 1200)), "the same corpus every time"
