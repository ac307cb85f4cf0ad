"""Notes in the corpus, so that a small policy can read one: true, idle and impossible ones, never a good one.

What OPID measures is how a policy reacts to a skill in its prompt, and a policy that never saw a note does not react. Here
somebody acts at random, and now and then a note stands in the prompt:

    true         it names what is then done                                  half of the notes
    idle         it names something else that could be done                  a quarter
    impossible   it names something that cannot be done here                 a quarter

The random choice comes first and the note follows it, so no note says what *should* be done, and what is learned is only that
notes are about actions and may be wrong. In the place of an episode's skill, after the task, several steps are told, without
their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from tacit.contexts.notes import teach
from tacit.core.skills import Lesson
from tacit.core.types import Prompt

NOTED = 0.3
"""share of documents with a note"""
AFTER_THE_TASK = 0.3
"""share of notes that stand there, as an episode's skill does; the others stand before the request"""
_KINDS = ("true", "idle", "impossible")
_NUMBERS = re.compile(r" \d+")


def noted(rng: Random, prompt: Prompt, taken: str, possible: Sequence[str], met: Sequence[str]) -> Prompt:
    """`taken` is what is done next, `met` what could be done at some other time."""
    (kind,) = rng.choices(_KINDS, (2, 1, 1))
    others = [action for action in possible if action != taken]
    elsewhere = [action for action in met if action not in possible]
    named = {"true": [taken], "idle": others, "impossible": elsewhere}[kind] or [taken]
    chosen = rng.choice(named)
    if rng.random() >= AFTER_THE_TASK:
        return teach(prompt, Lesson(step=chosen))
    beside = rng.sample(list(met), min(len(met), rng.randint(0, 2)))
    steps = [_NUMBERS.sub("", action) for action in (*beside, chosen)]
    rng.shuffle(steps)
    return teach(prompt, Lesson(task=", ".join(steps)))
