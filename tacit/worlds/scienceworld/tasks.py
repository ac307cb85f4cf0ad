"""ScienceWorld's 30 tasks, their variations and splits: the simulator's lists `train`, `dev` and `test`; `eto_test`, up to ten
`test` variations of each of ETO's 24 tasks (Song et al., 2024); and ETO's `eto_train` and `eto_dev`, from its repository.

In `eto_train`, ETO's step limits apply to the agent, but not to gold paths, many of which are longer. 54 of the 194 variations
in `eto_dev` are also in `eto_train`. `goals.json.xz` has the goal texts of scienceworld 1.2.3.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tacit.core.errors import TacitError, unknown
from tacit.core.tasks import parse_panels, shuffle_key
from tacit.core.types import Task

NAME = "scienceworld"
ETO_VARIABLE = "SCIENCEWORLD_ETO"
ETO_TESTED = 10  # variations of each task in `eto_test`


class Kind(NamedTuple):
    family: str
    train: int
    dev: int
    test: int  # consecutive variations in each of the simulator's lists
    limit: int  # ETO's step limit; 0 for the six tasks that ETO omits


TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
TASKS: Mapping[str, Kind] = {name: Kind(*row) for name, row in TABLES["tasks"].items()}
FAMILIES = tuple(dict.fromkeys(kind.family for kind in TASKS.values()))
"""the nine families of the constant-context paper (§7.1), and two for tasks that ETO omits"""
_OWN = ("train", "dev", "test")
_ETO_FILES = {"eto_train": "train_indices.json", "eto_dev": "dev_indices.json"}
SPLITS = (*_OWN, "eto_test", *_ETO_FILES)
SIZES: Mapping[str, int] = {
    **{split: sum(getattr(kind, split) for kind in TASKS.values()) for split in _OWN},
    "eto_test": sum(min(ETO_TESTED, kind.test) for kind in TASKS.values() if kind.limit),
    "eto_train": 1483,
    "eto_dev": 194,
}
_LIMITED = ("eto_test", "eto_dev")
_ETO_NAME = re.compile(r"^task-\d+a?-|[()]")  # `task-6-lifespan-(longest-lived)` -> `lifespan-longest-lived`


def tasks(split: str, count: int, seed: int, families: Sequence[str] = ()) -> list[Task]:
    """`count` tasks, ordered by seed and id. With `families`, fewer if there are not enough."""
    if split not in SPLITS:
        raise unknown(f"split of world {NAME!r}", split, SPLITS)
    if not 0 <= count <= SIZES[split]:
        raise TacitError(f"{count} tasks of {split!r} were requested; it has {SIZES[split]}.")
    listed = _read_eto_file(split) if split in _ETO_FILES else []
    for name, kind in () if split in _ETO_FILES else TASKS.items():
        start = {"train": 0, "dev": kind.train}.get(split, kind.train + kind.dev)
        size = {"train": kind.train, "dev": kind.dev}.get(split, kind.test)
        if split == "eto_test":
            size = min(ETO_TESTED, size) if kind.limit else 0
        listed += [(name, variation) for variation in range(start, start + size)]
    every = [_task(name, variation, split, seed) for name, variation in listed]
    wanted = [task for task in every if not families or task.family in families]
    return sorted(wanted, key=lambda task: shuffle_key(seed, task.id))[:count]


def _task(name: str, variation: int, split: str, seed: int) -> Task:
    kind = TASKS[name]
    limits = {"limit": kind.limit} if split in _LIMITED else {"max_steps": kind.limit} if split == "eto_train" else {}
    data = {"task": name, "variation": variation, **limits}
    return Task(NAME, f"{split}/{name}/{variation}", kind.family, split, seed, goals()[name][variation], data)


def _read_eto_file(split: str) -> list[tuple[str, int]]:
    """(task, variation) pairs of an ETO split, from its JSON file in the directory SCIENCEWORLD_ETO."""
    root, name = os.environ.get(ETO_VARIABLE, ""), _ETO_FILES[split]
    files = [Path(root).expanduser() / file for file in (name, f"eto_{name}")] if root else []
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        where = f"{root!r} does not have it" if root else "it is not set"
        raise TacitError(
            f"{split!r} needs a file of ETO: set {ETO_VARIABLE} to the directory with its {name} "
            f"(eval_agent/data/sciworld in the ETO repository); {where}. {', '.join((*_OWN, 'eto_test'))} need no file."
        )
    try:
        rows = [(_ETO_NAME.sub("", name), int(variation)) for name, variation in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise TacitError(f"{path} is not a list [[task, variation], …] of ETO: {error}") from error
    for name, variation in rows:
        if name not in TASKS or not 0 <= variation < sum(TASKS[name][1:4]):
            raise TacitError(f"{path} names variation {variation} of {name!r}, which ScienceWorld does not have.")
    return rows


@cache
def goals() -> Mapping[str, Sequence[str]]:
    """task -> the goal text of each variation"""
    with lzma.open(Path(__file__).parent / "goals.json.xz", "rt", encoding="utf-8") as file:
        return json.load(file)


PANELS = parse_panels("""
train      16:bc53b2823a6ef864 128:c359de0f118ec36f 3592:2f83162d28e8074f
dev        16:25282962056f9ebf 128:3660a40c39cf01f1 1796:65851a064e80ede2
test       16:f272c5485830859b 128:1780eb3bed9c2be3 1819:25bb3c6b79a8a072
eto_test   16:76205433ecedd688 128:980f661839126415 211:4457194f30c4574f
eto_train  16:7dad00178a84116a 128:0bd2cf39853d1c67 1483:cb9b5a573551e1dd
eto_dev    16:60ccc7cee99f29cc 128:6843846239c77239 194:0ddfaea4d73e0419
""")  # split -> number of tasks -> panel hash
