"""Control estimators for benchmarks/credit_quality.py: what else explains agreement with the true advantage?

    python benchmarks/credit_controls.py credit.json.parts --json controls.json
    python benchmarks/credit_controls.py credit.json.parts --against "BiPACE-Q, layer -2 mean, ε searched"

The controls use the same episodes and the same true advantages as the measured estimators:

    … , mean alone           R − mean_C R: Eq. 2 without the division by the deviation
    … , over deviation       Q̂ − V̂ divided by the cluster's deviation: PACE with Eq. 2's scale
    … , no episode term      Q̂ − V̂ alone
    one part                 the whole group as one cluster
    … by first tokens        both forms of PACE with the first eight tokens as the action's key (Table L.1); needs --tokenizer
    refused, repeated        rules that ignore outcomes: −1 for a refused action; −1 for a repeated one
    tracker                  progress − error of the step, if the run used a tracker
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tacit.core.errors import TacitError
from tacit.credit.partitions import by_key
from tacit.credit.step_relative import action_peers
from tacit.evaluation.credit_agreement import BASELINE, SUCCESS, Agreement, Estimate, MeasuredGroup, quality
from tacit.runs.files import write_json

MOMENTS = ("start", "middle", "end")
KEY_TOKENS = 8
Record = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", type=Path, metavar="FILE.parts", help="folder written by credit_quality.py; its runs are pooled"
    )
    parser.add_argument("--against", default=BASELINE, metavar="NAME", help="baseline estimator for differences")
    parser.add_argument("--discount", type=float, default=0.95, metavar="G", help="discount of the measurement (default: 0.95)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="the model's tokenizer.json, for keys by first tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="output file")
    arguments = parser.parse_args(argv)
    try:
        measured = read(arguments.parts, arguments.discount, arguments.tokenizer)
    except TacitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = {moment: quality(measured[moment], arguments.against) for moment in MOMENTS if moment in measured}
    rows: dict[str, list[Agreement]] = {}
    for one in found.values():
        for agreement in one.agreements:
            if agreement.on == "all":
                rows.setdefault(agreement.estimator, []).append(agreement)
    print(" | ".join(("correlation with Q − V (more than " + arguments.against + ")", *found)))
    for name, agreements in rows.items():
        print(" | ".join((name, *(f"{_text(a.correlation)} ({_text(a.gain, '+')})" for a in agreements))))
    if arguments.json:
        write_json(arguments.json, {moment: one.to_json() for moment, one in found.items()})
    return 0


def read(parts: Path, gamma: float, tokenizer: Path | None = None) -> dict[str, list[MeasuredGroup]]:
    """moment -> its groups, with the controls added to their credits"""
    if tokenizer and not tokenizer.is_file():
        raise TacitError(f"there is no {tokenizer}; give --tokenizer the tokenizer.json of the measured model.")
    encoding = Tokenizer.from_file(str(tokenizer)) if tokenizer else None
    files = sorted(parts.glob("*-played.json"))
    if not files:
        raise TacitError(f"{parts} has no measurements; give the folder FILE.parts from credit_quality.py --json FILE.")
    last = max((_trained_iterations(file) for file in files), default=0)
    found: dict[str, list[MeasuredGroup]] = {}
    shared: dict[str, set[str]] = {}
    for file in files:
        step = _trained_iterations(file)
        moment = MOMENTS[0] if not step else MOMENTS[2] if step == last else MOMENTS[1]
        for number, record in enumerate(json.loads(file.read_text(encoding="utf-8"))["groups"]):
            group = file.with_name(file.name.replace("-played.json", f"-group-{number:03d}.json"))
            if not group.exists():
                raise TacitError(f"{group} is missing: the measurement is incomplete; run its command again.")
            measured = MeasuredGroup.from_json(json.loads(group.read_text(encoding="utf-8")))
            credits = {**measured.group.credits, **dict(controls(measured, record["episodes"], gamma, encoding))}
            shared.setdefault(moment, set(credits)).intersection_update(credits)
            found.setdefault(moment, []).append(replace(measured, group=replace(measured.group, credits=credits)))
    # Keep the estimators that all groups of a moment have: `as trained` differs between methods.
    return {moment: [_having(shared[moment], one) for one in groups] for moment, groups in found.items()}


def _having(names: set[str], measured: MeasuredGroup) -> MeasuredGroup:
    credits = {name: credit for name, credit in measured.group.credits.items() if name in names}
    return replace(measured, group=replace(measured.group, credits=credits))


def controls(
    measured: MeasuredGroup, episodes: Sequence[Record], gamma: float, encoding: Tokenizer | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """(name, credit of each step)"""
    turns = [turn for episode in episodes for turn in episode["turns"]]
    key_N = by_key([turn["action"] for turn in turns])
    returns_N = np.concatenate([_returns(episode, gamma) for episode in episodes])
    recorded, episode_N = measured.group.credits, measured.group.credits[BASELINE]
    whole_N = np.zeros(len(turns), np.int64)
    for name, cluster_N in {**measured.group.parts, "one part": whole_N}.items():
        pace_N, _ = action_peers(returns_N, cluster_N, key_N)
        recorded_N = recorded.get(f"BiPACE-Q, {name}", recorded.get(f"PACE-Q, {name}"))
        # Check against the recorded credit, unless a completion did not parse: records lack its action key.
        if recorded_N is not None and all(turn["valid"] for turn in turns):
            np.testing.assert_allclose(episode_N + pace_N, recorded_N, atol=1e-9)
        mean_N, deviation_N = _within(returns_N, cluster_N)
        if recorded_N is None:
            yield f"PACE-Q, {name}", episode_N + pace_N
        yield f"{name}, mean alone", episode_N + returns_N - mean_N
        yield f"{name}, over deviation", episode_N + pace_N / (deviation_N + 1e-6)
        yield f"{name}, no episode term", pace_N
    if encoding is not None:
        written = [encoding.encode(turn["wrote"], add_special_tokens=False).ids for turn in turns]
        first_N = by_key([tuple(ids[:KEY_TOKENS]) for ids in written])
        for name, cluster_N in measured.group.parts.items():
            yield f"PACE-Q by first tokens, {name}", episode_N + action_peers(returns_N, cluster_N, first_N, "q")[0]
            yield f"PACE-diff by first tokens, {name}", episode_N + action_peers(returns_N, cluster_N, first_N, "difference")[0]
    yield "refused", np.array([-float(not (turn["valid"] and turn["effective"])) for turn in turns])
    yield "repeated", np.concatenate([_repeated(episode) for episode in episodes])
    signals = [turn.get("signals") or {} for turn in turns]
    yield "tracker", np.array([each.get("progress", 0.0) - each.get("error", 0.0) for each in signals])


def _returns(episode: Record, gamma: float) -> np.ndarray:
    steps = len(episode["turns"])
    return SUCCESS * float(episode["success"]) * gamma ** np.arange(steps - 1, -1, -1.0)


def _within(values_N: np.ndarray, cluster_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, population deviation) of each step's cluster."""
    size_C = np.maximum(np.bincount(cluster_N), 1)
    mean_N = (np.bincount(cluster_N, weights=values_N) / size_C)[cluster_N]
    return mean_N, np.sqrt(np.bincount(cluster_N, weights=(values_N - mean_N) ** 2) / size_C)[cluster_N]


def _repeated(episode: Record) -> np.ndarray:
    actions = [turn["action"] for turn in episode["turns"]]
    return np.array([-float(action in actions[:t]) for t, action in enumerate(actions)])


def _trained_iterations(file: Path) -> int:
    """Training iterations of the checkpoint in a file's name; 0 without one."""
    _, _, after = file.name.rpartition("-rl-")
    return int(after.split("-")[0]) if "-rl-" in file.name else 0


def _text(figure: Estimate, sign: str = "") -> str:
    if figure.value is None:
        return "–"
    return f"{figure.value:{sign}.2f}" + ("" if figure.low is None else f" [{figure.low:{sign}.2f}, {figure.high:{sign}.2f}]")


if __name__ == "__main__":
    sys.exit(main())
