"""The comparison itself: what each method came to over its seeds, and whether it differs from the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tacit.evaluation.curves import median_steps_to
from tacit.evaluation.intervals import (
    bounded_interval,
    crossed_bootstrap,
    paired_interval_over_tasks,
    share_interval,
    t_interval,
    worth,
)
from tacit.evaluation.significance import holm, mcnemar, sign_flip

Found = dict[str, Any]
CONFIDENCE = 0.95
UNIT = (0.0, 1.0)


def make_table(
    cells: Sequence[Found], worlds: Sequence[str], methods: Sequence[str], thresholds: Sequence[float]
) -> list[Found]:
    """One row per world and method. p-values are corrected over all rows of all worlds together (Holm)."""
    rows = []
    for world in worlds:
        first = _finished(cells, world, methods[0])
        for method in methods:
            row = _row(cells, world, method, thresholds)
            row["against"] = None if method == methods[0] else _against(_finished(cells, world, method), first, methods[0])
            rows.append(row)
    for name in ("p", "p_seeds"):
        asked = [row["against"] for row in rows if row["against"] and row["against"][name] is not None]
        for against, corrected in zip(asked, holm([a[name] for a in asked]), strict=True):
            against[f"{name}_holm"] = corrected
    return rows


def _row(cells: Sequence[Found], world: str, method: str, thresholds: Sequence[float]) -> Found:
    planned = [c for c in cells if (c["world"], c["method"]) == (world, method)]
    done = _finished(cells, world, method)
    finals = [c["final"] for c in done]
    steps = [[reached["step"] for reached in c["steps_to"]] for c in done if c["curve"]]
    return {
        "world": world,
        "method": method,
        "seeds": [c["seed"] for c in done],
        "missing": [c["seed"] for c in planned if c not in done],
        "start": _share([c["start"] for c in done]),
        "final": _share(finals),
        "peak": _share([c["peak"] for c in done]),
        "further": {
            panel: {end: _share([c["further"].get(panel, {}).get(end) for c in done]) for end in ("start", "final")}
            for panel in dict.fromkeys(panel for c in done for panel in c["further"])
        },
        "score": _mean([e["score"] for e in finals], UNIT),
        "success_length": _mean([e["success_steps"] if e["successes"] else None for e in finals], (0.0, math.inf)),
        "invalid": _mean([e["invalid"] for e in finals], UNIT),
        "ineffective": _mean([e["ineffective"] for e in finals], UNIT),
        "area": _mean([c["area"] for c in done], UNIT),
        "bootstrap": _bootstrap(done),
        "steps_to": [
            {
                "threshold": threshold,
                "reached": sum(s[i] is not None for s in steps),
                "of": len(steps),
                "median": median_steps_to([s[i] for s in steps]),
            }
            for i, threshold in enumerate(thresholds)
        ],
        "against": None,
    }


def _against(ours: Sequence[Found], theirs: Sequence[Found], name: str) -> Found | None:
    """Paired by seed, and within a seed by episode: both played the same tasks with the same random numbers."""
    by_seed = {c["seed"]: c for c in theirs}
    pairs = [(c, by_seed[c["seed"]]) for c in ours if c["seed"] in by_seed]
    if not pairs:
        return None
    differences = [a["final"]["success"] - b["final"]["success"] for a, b in pairs]
    difference = _mean(differences, (-1.0, 1.0)) or {}
    won = lost = p = None
    ours_T, theirs_T = (_tries([c["final"] for c in side]) for side in zip(*pairs, strict=True))
    if ours_T is not None and theirs_T is not None:
        won, lost, p = mcnemar(*([x for own in tries for x in own] for tries in (ours_T, theirs_T)))
        # As for a share: at least as wide as the tasks alone would have it.
        gaps_T = [[x - y for x, y in zip(*both, strict=True)] for both in zip(ours_T, theirs_T, strict=True)]
        low, high = paired_interval_over_tasks(gaps_T, CONFIDENCE)
        ends = {"low": (min, low), "high": (max, high)}
        difference |= {k: v if difference[k] is None else widest(difference[k], v) for k, (widest, v) in ends.items()}
    return {
        "method": name,
        "seeds": [a["seed"] for a, _ in pairs],
        "difference": difference,
        "won": won,
        "lost": lost,
        "p": p,
        "p_holm": None,
        "p_seeds": sign_flip(differences) if len(differences) > 1 else None,
        "p_seeds_holm": None,
    }


def _finished(cells: Sequence[Found], world: str, method: str) -> list[Found]:
    return [c for c in cells if (c["world"], c["method"]) == (world, method) and c["final"] is not None]


def _share(evaluations: Sequence[Found | None]) -> Found | None:
    there = [e for e in evaluations if e is not None]
    if not there or len(there) < len(evaluations):
        return None
    # All seeds may have begun from one start that was measured once: that is one measurement, not several that agree.
    once = list({id(e): e for e in there}.values())
    shares, tries_T = [e["success"] for e in once], _tries(once)
    p, episodes = float(np.mean(shares)), float(once[0]["episodes"])  # where tasks cannot be told apart, one seed's
    if tries_T is not None:
        episodes = worth([sum(own) / len(own) for own in tries_T], p * (1 - p), sum(map(len, tries_T)))
    low, high = share_interval(shares, episodes, CONFIDENCE)
    per_seed = [e["success"] for e in there]
    return {"mean": float(np.mean(per_seed)), "low": low, "high": high, "per_seed": per_seed}


def _tries(evaluations: Sequence[Found]) -> list[list[bool]] | None:
    """Each task's outcomes over seeds and repeats; None where a run of a version that did not keep them is among them."""
    rows = [repeat for e in evaluations for repeat in e.get("outcomes", ())]
    if sum(map(len, rows)) != sum(e["episodes"] for e in evaluations):
        return None
    return [[digit == "1" for digit in task] for task in zip(*rows, strict=True)]


def _mean(values: Sequence[float | None], bounds: tuple[float, float]) -> Found | None:
    """With the interval over seeds. Values that are all alike say nothing about their spread, so they have none."""
    there = [v for v in values if v is not None]
    if not there:
        return None
    low, high = _over_seeds(there, bounds) if len(set(there)) > 1 else (None, None)
    return {"mean": float(np.mean(there)), "low": low, "high": high, "per_seed": list(values)}


def _over_seeds(values: Sequence[float], bounds: tuple[float, float]) -> tuple[float, float]:
    """The t interval, within the bounds; a world whose score leaves them has it as it is."""
    if min(values) < bounds[0] or max(values) > bounds[1]:
        return t_interval(values, CONFIDENCE)
    if bounds == UNIT:
        return bounded_interval(values, CONFIDENCE)
    low, high = t_interval(values, CONFIDENCE)
    return max(bounds[0], low), min(bounds[1], high)


def _bootstrap(done: Sequence[Found]) -> Found | None:
    outcomes = [c["outcomes"] for c in done]
    if not outcomes or any(o is None or len(o) != len(outcomes[0]) for o in outcomes):
        return None
    low, high = crossed_bootstrap(np.array(outcomes, float), CONFIDENCE, resamples=2000)
    return {"low": low, "high": high}
