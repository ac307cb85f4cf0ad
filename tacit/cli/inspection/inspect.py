"""`tacit inspect`: one subcommand per module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tacit.cli.terminal import dispatch

KINDS = {
    "dictionary": "the phrases successes are made of, how they changed, and how the run behaves",
    "clusters": "which steps of a group were compared with each other, and with what credit",
    "credit": "how well each estimator's credit agrees with what steps were worth, by Monte Carlo",
    "notes": "whether a policy can use its notes: the gate before comparing methods that are built on them",
    "skills": "what hindsight taught of an episode, token by token",
}


def run(argv: Sequence[str]) -> int:
    width = max(map(len, KINDS))
    kinds = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in KINDS.items())
    commands = {name: lambda words: importlib.import_module(f"tacit.cli.inspection.{argv[0]}").run(words) for name in KINDS}
    return dispatch(argv, f"usage: tacit inspect KIND RUN ...\n\n{kinds}", commands, "kind of inspection")
