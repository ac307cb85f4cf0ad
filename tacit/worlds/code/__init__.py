"""Code repair: find and mend a defect in a Python package, with a shell, an editor and its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tacit.core.errors import unknown
from tacit.core.simulator import Served
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.worlds.code import skills, world
from tacit.worlds.code.skills import NoEdit, Oracle, RandomEdit, Rule, Search
from tacit.worlds.code.swebench import instance_environment
from tacit.worlds.code.tasks import (
    FAMILIES,
    NAME,
    PACKAGED,
    PANELS,
    SPLITS,
    broken_files,
    record_of,
    split_sizes,
    tasks,
)
from tacit.worlds.code.world import SHOWN, Bench, CodeWorld, FullWording, TerseWording

THREADS = 4
"""commands that a worker process runs at the same time, so that a test that hangs does not delay its other episodes"""
PLAIN, LOCATED, SOURCE = ISSUES = ("plain", "located", "source")


def example_texts(seed: int) -> list[str]:
    """Text to train a tiny tokenizer: the terse wording along the oracle's episodes, without running them."""
    wording, texts = TerseWording(), ["Edited /testbed passed failed [exit status 0]", "submit"]
    for task in tasks("train", 200, seed):
        record, folder = record_of(task)
        broken = broken_files(record, folder.tree(record))
        texts += [wording.task(task), f"bash pytest -q {' '.join(record.test_files)}"]
        for hunk in skills.find_hunks(record, folder):
            lines = broken[hunk.path].split("\n")
            first, last = max(1, hunk.first - skills.AROUND), hunk.last + skills.AROUND
            excerpt = "\n".join(f"{number} {line}" for number, line in enumerate(lines[first - 1 : last], first))
            texts += [f"{hunk.path}\n{excerpt}", hunk.view, hunk.edit]
        texts += skills.Search(task).actions
    return texts


def code_environment(
    folder: str | Path = PACKAGED, tests: str = SHOWN, sandbox: str = world.ISOLATED, runtime: str = "", issue: str = PLAIN
) -> Environment:
    """The code world with other options. `folder` is a task folder from `tacit prepare code`, or a .jsonl file of SWE-bench
    instances, which run in containers of `runtime` (docker, podman or apptainer; default: the first installed). `tests` are
    shown or hidden. `sandbox` none runs commands without isolation: only for repositories and models you trust. `issue` located
    names the function with the defect, source also shows its code."""
    for option, value, known in (("tests", tests, world.TESTS), ("sandbox", sandbox, world.MODES), ("issue", issue, ISSUES)):
        if value not in known:
            raise unknown(f"value of {option}", value, known)
    root = Path(folder).expanduser().absolute()
    if root.suffix == ".jsonl":
        return instance_environment(ENVIRONMENT, root, runtime)

    def own_tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
        selected = tasks(split, count, seed, families, root)
        if tests != SHOWN:
            selected = [replace(task, data={**task.data, "tests": tests}) for task in selected]
        if issue == PLAIN:
            return selected
        hint = skills.show_defects if issue == SOURCE else skills.locate_defects
        return [replace(task, goal=f"{task.goal.rstrip()}\n\n{hint(task)}") for task in selected]

    return replace(
        ENVIRONMENT,
        summary=f"{ENVIRONMENT.summary}; tasks of {root if root != PACKAGED else 'the package'}, tests {tests}",
        make=Served(partial(Bench, root, sandbox), CodeWorld, THREADS),
        tasks=own_tasks,
        family_tasks=own_tasks,
        published=split_sizes(root),
        panels=PANELS if root == PACKAGED and tests == SHOWN and issue == PLAIN else {},
    )


ENVIRONMENT = Environment(
    name=NAME,
    summary="Code repair: fix a Python package with a shell, an editor and its tests, in a sandbox",
    max_steps=world.MAX_STEPS,
    make=Served(Bench, CodeWorld, THREADS),
    tasks=tasks,
    splits=SPLITS,
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"oracle": Oracle, "rule": Rule, "search": Search, "random": RandomEdit, "none": NoEdit},
    alphabet=skills.ALPHABET,
    tracker=skills.RepairTracker(),
    failure=skills.failure,
    hindsight=skills.hindsight,
    handbook=skills.HANDBOOK,
    example_texts=example_texts,
    action_tokens=128,
    slow=True,
    family_tasks=tasks,
    published=split_sizes(),
    panels=PANELS,
    configure=code_environment,
    requires=("pytest",),
    extra="code",
)
