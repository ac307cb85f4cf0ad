"""Search QA: search a corpus, then answer, with a generated corpus, or corpus and question files."""

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
from tacit.worlds.searchqa.published import FAMILIES, NAME, USUAL_RETRIEVER, published_tasks
from tacit.worlds.searchqa.published import SPLITS as PUBLISHED
from tacit.worlds.searchqa.retrieval import Encode, parse_passages
from tacit.worlds.searchqa.skills import ALPHABET, HANDBOOK, Oracle, SearchTracker, failure, hindsight
from tacit.worlds.searchqa.world import MAX_STEPS, PANELS, SPLITS, FullWording, SearchWorld, TerseWording, tasks

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
    """Pretraining questions about the visible passages: `teacher of Mara Velden? Jon Hale`."""
    pairs = []
    for title, text in parse_passages(observation.text):
        there = [(fact, match[1]) for pattern, fact in _FACTS if (match := pattern.search(text))]
        if there:
            fact, value = rng.choice(there)
            pairs.append((f"{fact} of {title}", value))
    return pairs


ENVIRONMENT = Environment(
    name=NAME,
    summary="Search QA: search a corpus in up to three turns, then answer; corpus and questions are generated, or yours",
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
    history=4,
    critical_steps=2,
    published_families={"one_hop": "direct_retrieval", "bridge": "multi_hop_reasoning", "comparison": "compare"},
    handbook=HANDBOOK,
    example_texts=lambda seed: texts_of_play(
        SearchWorld(), tasks("train", 320, seed), Oracle, (TerseWording(), FullWording()), bare=True
    ),
    questions=questions,
    action_tokens=48,
    family_tasks=tasks,
    panels=PANELS,
)


def searchqa_environment(
    path: str | Path, retriever: str = USUAL_RETRIEVER, encode: Encode | None = None, name: str = NAME, scoring: str = ""
) -> Environment:
    """Search QA over your own files: a folder, or one question file with a corpus next to it (see published.py). `retriever` is
    bm25, the address of a retrieval server, or a sentence encoder's directory or hub id; `encode` is a custom encoder,
    N texts -> [N, D]; `scoring` is empty or squad."""
    root = Path(path).expanduser()

    def own_tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
        if split not in PUBLISHED:
            raise unknown(f"split of world {name!r}", split, PUBLISHED)
        selected = published_tasks(split, count, seed, families, root, retriever, scoring)
        return selected if name == NAME else [replace(task, world=name) for task in selected]

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
