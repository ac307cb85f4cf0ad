"""`tacit inspect`: one subcommand per module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tacit.cli.terminal import dispatch

SUMMARY_LINE = "Inspect what a run has learned and how its credit was assigned."
KINDS = {
    "dictionary": "phrases of its successes (ReuseRL), and its behavior",
    "clusters": "which steps of a group were compared, and their credit",
    "credit": "agreement of each estimator's credit with Monte Carlo advantages",
    "notes": "whether a policy can use notes; check this before comparing methods that need them",
    "skills": "hindsight skills of an episode and their effect on each token",
}


def run(argv: Sequence[str]) -> int:
    def inspect(words: Sequence[str]) -> int:
        return importlib.import_module(f"tacit.cli.inspection.{argv[0]}").run(words)

    return dispatch(argv, "inspect", SUMMARY_LINE, {name: (inspect, summary) for name, summary in KINDS.items()})
