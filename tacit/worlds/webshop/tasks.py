"""Splits of the shop and where their goals come from.

    train, test                     the generated catalogue
    published_train, published_test the original's files, sentences made from attributes: what the papers train on
    human_train, human_test         the original's files, sentences that people wrote

A goal has an id of its own (product, sentence and options), its split is decided by what it is about (catalogue.py), and a
panel is the first of all goals in an order that depends on the seed and the ids alone. Published goals that cannot be won are
left out: of some not even the product itself, bought as asked, scores 1 (a `rectangular` in which the rule finds the colour
`tan`, say).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from tacit.core.errors import TacitError, check_asked, unknown
from tacit.core.tasks import parse_panels, shuffle_key
from tacit.core.types import Task
from tacit.worlds.webshop.catalogue import Catalogue, Goal
from tacit.worlds.webshop.generator import NAME as GENERATED
from tacit.worlds.webshop.generator import generated
from tacit.worlds.webshop.published import NAME as PUBLISHED
from tacit.worlds.webshop.published import PEOPLE, published
from tacit.worlds.webshop.reward import judge

NAME = "webshop"
FAMILIES = ("beauty", "electronics", "fashion", "garden", "grocery")
_CATALOGUES: Mapping[str, Callable[[], Catalogue]] = {GENERATED: generated, PUBLISHED: published}
_SOURCES: Mapping[str, tuple[str, bool, bool]] = {
    "train": (GENERATED, False, False),
    "test": (GENERATED, True, False),
    "published_train": (PUBLISHED, False, False),
    "published_test": (PUBLISHED, True, False),
    "human_train": (PUBLISHED, False, True),
    "human_test": (PUBLISHED, True, True),
}
"""split -> (catalogue, for tests, told by people)"""
SPLITS = tuple(_SOURCES)


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Task]:
    """`count` goals of the split, the same on every machine; of some families only, as many as there are."""
    check_asked(NAME, SPLITS, split, count)
    name, test, human = _SOURCES[split]
    catalogue = _CATALOGUES[name]()
    if human and not catalogue.human:
        raise TacitError(
            f"{split!r} has sentences that people wrote, and {PEOPLE} does not lie beside the products, or tells of none of "
            "them: WebShop's setup.sh fetches it into its data folder; `published_train` and `published_test` need none."
        )
    every = set(families) >= set(FAMILIES)
    found: list[Task] = []
    for goal in _goals(catalogue, test, human, seed):
        if len(found) == count:
            break
        if (every or goal.family in families) and (name == GENERATED or winnable(catalogue, goal)):
            found.append(_task(catalogue, goal, split, seed))
    if len(found) < count and every:
        raise TacitError(
            f"{count} goals of {split!r} were asked for, but the {name} shop ({catalogue.report}) has {len(found)}."
        )
    return found


@lru_cache(65536)
def winnable(catalogue: Catalogue, goal: Goal) -> bool:
    """Whether the product that is meant, bought with the options that are meant, scores 1."""
    chosen = {name or str(place): value for place, (name, value) in enumerate(goal.options)}
    return judge(catalogue.by_id[goal.product], chosen, goal).reward == 1.0


def catalogue_of(task: Task) -> Catalogue:
    """The shop a task is about; refused where it sells something else by now."""
    name = task.data["catalogue"]
    if name not in _CATALOGUES:
        raise unknown("catalogue of world 'webshop'", str(name), _CATALOGUES)
    catalogue = _CATALOGUES[name]()
    if catalogue.digest != task.data["digest"]:
        raise TacitError(
            f"task {task.id!r} was made for another {name} catalogue ({task.data['digest']}) than the one here "
            f"({catalogue.digest}, {len(catalogue.products)} products): point WEBSHOP_DATA at the files it was made with."
        )
    return catalogue


@lru_cache(8)
def _goals(catalogue: Catalogue, test: bool, human: bool, seed: int) -> tuple[Goal, ...]:
    """All goals of a split in the seed's order; two that say the same are one."""
    unique = {goal.key: goal for goal in catalogue.goals(test, human)}
    ordered = sorted(unique, key=lambda key: shuffle_key(seed, key))
    return tuple(unique[key] for key in ordered)


def _task(catalogue: Catalogue, goal: Goal, split: str, seed: int) -> Task:
    return Task(
        world=NAME,
        id=f"{NAME}/{split}/{goal.key}",
        family=goal.family,
        split=split,
        seed=seed,
        goal=goal.sentence,
        data={"catalogue": catalogue.name, "digest": catalogue.digest, "goal": goal.to_data()},
    )


PANELS = parse_panels("""
train  16:7e55a8122bce2801 128:fa10c1e5b8c24dcb 256:0b33ad5fc4ffcb01 512:708b2ca2b6a482f9 1024:68fe03adb550e694
test   16:0afcfe540f2c1953 128:4ca1164a39d8d04d 256:e29aafc7658f649e 512:ae303b7fc25f3840 1024:333f9384ae0babff
""")
"""split -> number of tasks -> panel hash"""
