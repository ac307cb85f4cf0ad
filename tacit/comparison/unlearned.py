"""What stands in a comparison without being trained: rows that only play, and worlds whose tasks may not be on this machine.

[methods.reader-paper]
plays = "reader"        the world's reader, or its `expert`; measured once for each seed on the panels of the other rows
block = "paper"         what it reads; an expert reads nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tacit.assembly.checks import AGENTS, EXPERT, READER, open_world
from tacit.assembly.recipe import DEFAULT_METHOD, Document, Recipe
from tacit.comparison.fields import having, merge
from tacit.core.errors import TacitError, unknown
from tacit.training.practice import Course

PLAYS = "plays"
READ_BY = {READER: "constant_context", EXPERT: DEFAULT_METHOD}
"""whose context one who learns nothing is in, where no method is named"""
CONTEXT = ("history", "state_block", "block", "bound", "wording", "style", "chat", "thinking", "admissible")
"""settings of a method that say what its agent reads: whoever continues from a start reads what the start was taught with"""
STILL = {"sft": {"steps": 0, "rounds": 0}, "schedule": {"iterations": 0}, "evaluation": {"untrained": True}}


def played_document(method: str, shared: Document, own: Document) -> Document:
    """Of a row that learns nothing, from its own table and what all rows of the world share."""
    plays = own[PLAYS]
    if plays not in AGENTS:
        raise unknown(f"player of method {method!r}", str(plays), AGENTS)
    if section := next((key for key, value in own.items() if isinstance(value, Mapping)), ""):
        raise TacitError(f"method {method!r} says {section!r}, but plays = {plays!r} learns nothing that it could be for.")
    name = own.get("name", READ_BY[plays])
    settings = {**having(shared.get("method", {}), name), **{key: value for key, value in own.items() if key != PLAYS}}
    rest = {key: value for key, value in shared.items() if key != "tiny"}
    return merge(rest, {"method": None}, STILL, {"model": plays, "method": {**settings, "name": name}, "seed": 0})


def compared(document: Document) -> Document:
    """The settings of a row that are held against those of the others: of one who learns nothing, what it reads."""
    if document["model"] not in AGENTS:
        return document
    reads = CONTEXT if document["model"] == READER else ()
    return {"method": {key: value for key, value in document["method"].items() if key in reads}}


def missing_here(shared: Document) -> str:
    """Why a world cannot be played on this machine; nothing where its tasks are at hand."""
    recipe = Recipe.from_json({**{k: v for k, v in shared.items() if k not in ("start", "methods")}, "method": DEFAULT_METHOD})
    world, train = open_world(recipe.world), recipe.train
    try:
        Course.of(world, replace(train, tasks=1, evaluation=replace(train.evaluation, tasks=1)))
    except TacitError as error:
        return str(error)
    return ""
