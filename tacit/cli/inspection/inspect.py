"""`tacit inspect`: one subcommand per module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tacit.core.errors import unknown

KINDS = {
    "dictionary": (
        "tacit.cli.inspection.dictionary",
        "the phrases successes are made of, how they changed, and how the run behaves",
    ),
    "clusters": (
        "tacit.cli.inspection.clusters",
        "which steps of a group were compared with each other, and with what credit",
    ),
    "credit": (
        "tacit.cli.inspection.credit",
        "how well each estimator's credit agrees with what steps were worth, by Monte Carlo",
    ),
    "notes": (
        "tacit.cli.inspection.notes",
        "whether a policy can use its notes: the gate before comparing methods that are built on them",
    ),
    "skills": (
        "tacit.cli.inspection.skills",
        "what hindsight taught of an episode, token by token; or whether a policy can read a skill (--probe)",
    ),
}


def run(argv: Sequence[str]) -> int:
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, KINDS))
        print("usage: tacit inspect KIND RUN ...\n")
        print("\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in KINDS.items()))
        return 0
    if words[0] not in KINDS:
        raise unknown("kind of inspection", words[0], KINDS)
    return importlib.import_module(KINDS[words[0]][0]).run(words[1:])
