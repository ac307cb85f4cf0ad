"""Code repair: find and mend a defect in a Python package, with a shell, an editor and its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tacit.core.errors import unknown
from tacit.core.simulator import Served
from tacit.core.types import Task
from tacit.core.world import Environment, texts_of_play
from tacit.worlds.code.expert import NoEdit, Oracle, RandomEdit, Rule
from tacit.worlds.code.prompt import FullWording, TerseWording
from tacit.worlds.code.skills import ALPHABET, HANDBOOK, failure, hindsight
from tacit.worlds.code.tasks import FAMILIES, NAME, PACKAGED, PANELS, SPLITS, open_folder, tasks
from tacit.worlds.code.tracker import RepairTracker
from tacit.worlds.code.world import ISOLATED, MAX_STEPS, MODES, SHOWN, TESTS, Bench, CodeWorld


def find_missing() -> str:
    """What is not there to run tests with."""
    return "" if find_spec("pytest") else "pytest: pip install pytest"


def example_texts(seed: int) -> list[str]:
    """Text to train a tiny tokenizer: the sources, and the terse wording along the oracle's episodes."""
    make, wordings = Served(Bench, CodeWorld), (TerseWording(),)
    try:
        texts = texts_of_play(make(), tasks("train", 40, seed), Oracle, wordings, RepairTracker(), bare=True)
    finally:
        make.close()
    return texts + [path.read_text() for path in sorted(PACKAGED.rglob("*.py"))]


def code_environment(folder: str | Path = PACKAGED, tests: str = SHOWN, sandbox: str = ISOLATED) -> Environment:
    """The world with the tasks of a folder that `tacit prepare code` made, with tests shown or hidden; `sandbox` none runs
    commands without isolation, which is only for repositories and models you trust."""
    if tests not in TESTS:
        raise unknown("value of tests", tests, TESTS)
    if sandbox not in MODES:
        raise unknown("value of sandbox", sandbox, MODES)
    root = PACKAGED if folder == PACKAGED else Path(folder).expanduser().absolute()
    if root != PACKAGED:
        open_folder(root)

    def own_tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
        found = tasks(split, count, seed, families, root)
        return found if tests == SHOWN else [replace(task, data={**task.data, "tests": tests}) for task in found]

    return replace(
        ENVIRONMENT,
        summary=f"{ENVIRONMENT.summary}; tasks of {root if root != PACKAGED else 'the package'}, tests {tests}",
        make=Served(partial(Bench, root, sandbox), CodeWorld),
        tasks=own_tasks,
        family_tasks=own_tasks,
        panels=PANELS if root == PACKAGED and tests == SHOWN else {},
    )


ENVIRONMENT = Environment(
    name=NAME,
    summary="Code repair: mend a Python package with a shell, an editor and its tests, in a sandbox",
    max_steps=MAX_STEPS,
    make=Served(Bench, CodeWorld),
    tasks=tasks,
    splits=SPLITS,
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"oracle": Oracle, "rule": Rule, "random": RandomEdit, "none": NoEdit},
    alphabet=ALPHABET,
    tracker=RepairTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=example_texts,
    action_tokens=128,
    slow=True,
    family_tasks=tasks,
    panels=PANELS,
    configure=code_environment,
    lacks=find_missing,
)
