"""What `tacit eval` prints: progress while it plays, then the numbers, each with what it is a number of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.cli.evaluation.results import same_episodes
from tacit.cli.progress import LiveReporter
from tacit.cli.terminal import after, duration, interval, percent, say, say_pairs, table
from tacit.core.types import Trajectory
from tacit.evaluation.scores import final_and_peak
from tacit.runs.directory import SUMMARY, find_summary

if TYPE_CHECKING:
    from tacit.assembly.players import Target
    from tacit.evaluation.behaviour import Behaviour
    from tacit.evaluation.scores import PanelScore

LINE_EVERY_S = 10.0
"""between lines of progress where there is no terminal to redraw"""

Pairs = list[tuple[str, str]]


class Progress:
    """Told how many episodes are over. A bar in a terminal; elsewhere a line now and then, none for what is over at once."""

    def __init__(self, console: Console, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._total, self._clock = console, total, clock
        self._live = LiveReporter(console) if console.is_terminal and os.environ.get("TERM") != "dumb" else None
        self._began = self._said = clock()
        self._first: int | None = None

    def __call__(self, over: int) -> None:
        if self._first is None:
            self._first = over
            if self._live:
                self._live.stage("eval", self._total, over)
        if self._live:
            self._live.step(over, {})
        elif self._clock() - self._said >= LINE_EVERY_S and over < self._total:
            self._said = self._clock()
            pace = (self._said - self._began) / max(1, over - self._first)
            left = f", {duration(pace * (self._total - over))} left" if over > self._first else ""
            say(self._console, f"eval: {over} of {self._total} episodes{left}")

    def close(self) -> None:
        if self._live:
            self._live.close()


def show(
    console: Console,
    target: Target,
    score: PanelScore,
    how: Behaviour,
    earlier: dict[str, Any] | None,
    played: Sequence[Trajectory],
) -> None:
    say(console, f"success {score}", style="bold")
    pairs = [*_what(target, score), *_outcomes(score), *_turns(score, how), *_tokens(score), *_failures(how)]
    pairs += [*_crashes(score, played), *_broken(target), *_the_run(target, score, earlier)]
    say_pairs(console, pairs)
    if len(score.families) > 1:
        console.print()
        console.print(_families(score))


def _what(target: Target, score: PanelScore) -> Pairs:
    sampling = score.sampling
    pairs = [("of", target.label), ("panel", f"{score.panel} (version {score.panel_version}, hash {score.panel_hash})")]
    pairs += [("seed", str(score.seed))]
    if not score.completion_tokens:
        return pairs
    said = f"temperature {sampling['temperature']:g}, top_p {sampling['top_p']:g}, top_k {sampling['top_k']}"
    weights = [] if target.identity else [("weights", f"{target.fingerprint[:16]}, {target.numbers}")]
    return [*pairs, ("sampling", said), *weights]


def _outcomes(score: PanelScore) -> Pairs:
    pairs = [("score", f"{score.score:.3f}")] if score.score != score.success else []
    if len(score.families) > 1:
        pairs += [
            ("macro", f"{percent(score.macro)} {interval(score.macro_interval)}, the mean over {len(score.families)} families")
        ]
    for name, shares, intervals, won in (
        ("pass@", score.pass_at, score.pass_interval, "at least one"),
        ("SC@", score.majority_at, score.majority_interval, "most"),
    ):
        for k, share in shares.items():
            tries = "1 try" if k == 1 else f"{k} tries"
            pairs += [(f"{name}{k}", f"{percent(share)} {interval(intervals[k])} of the tasks, {won} of {tries}")]
    return pairs


def _turns(score: PanelScore, how: Behaviour) -> Pairs:
    of_successes = f", {score.success_steps:.1f} where it succeeded" if score.successes else ""
    pairs = [("steps", f"{score.steps:.1f} per episode{of_successes}")]
    pairs += [("actions", f"{percent(score.invalid)} did not parse, {percent(score.ineffective)} were refused by the world")]
    if how.all_repeats is not None:
        again = f"{percent(how.all_repeats)} of all actions"
        again += f", {percent(how.repeats)} in successes" if how.repeats is not None else ""
        pairs += [("repeated", again)]
    if how.revisits:
        pairs += [("revisits", f"{how.revisits:.2f} per success")]
    return pairs


def _tokens(score: PanelScore) -> Pairs:
    if not score.completion_tokens:
        return []
    pairs = [
        ("per turn", f"{score.prompt_tokens:.1f} tokens read, {score.completion_tokens:.1f} written"),
        ("per episode", f"{score.episode_prompt_tokens:.1f} tokens read, {score.episode_completion_tokens:.1f} written"),
    ]
    if score.cost is not None:
        each = score.cost / score.successes if score.successes else None
        pairs += [("cost", f"{score.cost:.4g}" + (f", {each:.4g} per success" if each is not None else ""))]
    return pairs


def _failures(how: Behaviour) -> Pairs:
    if not how.failures:
        return []
    count = how.episodes - how.successes
    ranked = sorted(how.failures.items(), key=lambda item: -item[1])
    return [("failures", f"{count}: " + ", ".join(f"{label} {percent(share)}" for label, share in ranked))]


def _crashes(score: PanelScore, played: Sequence[Trajectory]) -> Pairs:
    if not score.crashed:
        return []
    first = next(t.detail for t in played if t.stop.crashed)
    what = "episode" if score.crashed == 1 else "episodes"
    return [("crashed", f"{score.crashed} {what} ended because the world broke, counted as failures. The first: {first}")]


def _broken(target: Target) -> Pairs:
    broken: Sequence[str] = getattr(target.policy, "broken", ())
    if not broken:
        return []
    return [("unusable", f"{len(broken)} answers just now, each a turn that does not parse. The first: {broken[0]}")]


def _the_run(target: Target, score: PanelScore, earlier: dict[str, Any] | None) -> Pairs:
    if target.run is None:
        return []
    if earlier is None:
        pairs = [("the run said", "nothing about this checkpoint with these settings")]
    else:
        other = "NOT the same: other weights, number format, library versions or hardware"
        verdict = "the same" if same_episodes(score, earlier) else other
        pairs = [("the run said", f"{percent(earlier['success'])} {after(earlier)}: {verdict}")]
    summary = find_summary(target.run)
    if summary is None:
        why = "summary.json is damaged" if (target.run / SUMMARY).exists() else "the run has not ended"
        return [*pairs, ("unfinished", f"{why}; `tacit train --resume {target.run}` goes on with it")]
    final, peak = final_and_peak(summary["evaluations"])
    pairs += [("its final", f"{percent(final['success'])} {after(final)}")]
    return [*pairs, ("its peak", f"{percent(peak['success'])} {after(peak)}")]


def _families(score: PanelScore) -> Any:
    columns = ("family", "success", "95% interval", "score", "steps", "episodes")
    rows = [
        (
            name,
            percent(family.success),
            interval(family.interval),
            f"{family.score:.3f}",
            f"{family.steps:.1f}",
            str(family.episodes),
        )
        for name, family in score.families.items()
    ]
    return table("", columns, rows, numbers=columns[1:])
