"""Search QA: look things up in a corpus, then answer. A generated land needs no files; any corpus and question file will do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from tacit.core.errors import unknown
from tacit.core.types import Observation, Task
from tacit.core.world import Environment, texts_of_play
from tacit.worlds.searchqa.expert import Oracle
from tacit.worlds.searchqa.prompt import FullWording, TerseWording
from tacit.worlds.searchqa.published import FAMILIES, NAME, USUAL_RETRIEVER, published_tasks
from tacit.worlds.searchqa.published import SPLITS as PUBLISHED
from tacit.worlds.searchqa.retrieval import Encode, read
from tacit.worlds.searchqa.skills import ALPHABET, HANDBOOK, failure, hindsight
from tacit.worlds.searchqa.tasks import PANELS, SPLITS, tasks
from tacit.worlds.searchqa.tracker import SearchTracker
from tacit.worlds.searchqa.world import MAX_STEPS, SearchWorld

_FACTS = (
    (re.compile(r"is an? (\w+), born"), "profession"),
    (re.compile(r"born in (\w+) in \d"), "birthplace"),
    (re.compile(r"born in (?:\w+ in )(\d+)"), "born"),
    (re.compile(r"pupil of ([\w ]+?)[.,]"), "teacher"),
    (re.compile(r"town on the (\w+)"), "river"),
    (re.compile(r"mayor is ([\w ]+)\."), "mayor"),
    (re.compile(r"flows into ([\w ]+)\."), "lake"),
    (re.compile(r"book by ([\w ]+),"), "author"),
)


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """What a passage in sight says: `teacher of Mara Velden? Jon Hale`."""
    asked = []
    for title, text in read(observation.text):
        there = [(fact, found[1]) for pattern, fact in _FACTS if (found := pattern.search(text))]
        if there:
            fact, said = rng.choice(there)
            asked.append((f"{fact} of {title}", said))
    return asked


def example_texts(seed: int) -> list[str]:
    """Both wordings along the oracle's episodes, and what it says, for training a tiny tokenizer."""
    return texts_of_play(SearchWorld(), tasks("train", 320, seed), Oracle, (TerseWording(), FullWording()), bare=True)


ENVIRONMENT = Environment(
    name=NAME,
    summary="Search QA: search a corpus in up to three turns, then answer; a generated land, or corpus and question files",
    max_steps=MAX_STEPS,
    make=SearchWorld,
    tasks=tasks,
    splits=SPLITS,
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"oracle": Oracle},
    alphabet=ALPHABET,
    tracker=SearchTracker(),
    failure=failure,
    hindsight=hindsight,
    critical_steps=2,
    handbook=HANDBOOK,
    example_texts=example_texts,
    questions=questions,
    action_tokens=48,
    family_tasks=tasks,
    panels=PANELS,
)


def searchqa_environment(
    path: str | Path, retriever: str = USUAL_RETRIEVER, encode: Encode | None = None, name: str = NAME
) -> Environment:
    """Search QA over files of one's own: a folder, or one question file with its corpus beside it (published.py says how they
    are named). `retriever` is bm25, ngrams, or a sentence encoder's directory or hub id; `encode` is an encoder of one's own,
    N texts -> [N, D]."""
    root = Path(path).expanduser()

    def own_tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
        if split not in PUBLISHED:
            raise unknown(f"split of world {name!r}", split, PUBLISHED)
        found = published_tasks(split, count, seed, families, root, retriever)
        return found if name == NAME else [replace(task, world=name) for task in found]

    return replace(
        ENVIRONMENT,
        name=name,
        summary=f"Search QA over {path}",
        make=partial(SearchWorld, root, encode),
        tasks=own_tasks,
        family_tasks=own_tasks,
        splits=PUBLISHED,
        panel_split=PUBLISHED[-1],
        panels={},
    )
