"""What `tacit eval` prints: the numbers, each with what it is a number of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tacit.assembly.measuring import Measured
from tacit.assembly.players import Target
from tacit.cli.terminal import interval, percent, say, say_pairs, table
from tacit.core.amounts import after, number_of
from tacit.evaluation.behaviour import Behaviour, ending_in_words
from tacit.evaluation.scores import PanelScore, final_and_peak, in_world
from tacit.evaluation.tokens import TokenUse
from tacit.rollout.crashes import first_crash
from tacit.rollout.tally import describe_completion
from tacit.runs.directory import SUMMARY, find_summary

Pairs = list[tuple[str, str]]


def show(console: Console, target: Target, measured: Measured) -> None:
    score, how = measured.score, measured.behaviour
    say(console, f"success {score}", style="bold")
    pairs = [*_what(target, score), *_outcomes(score), *_turns(score, how), *_tokens(score), *_failures(how)]
    pairs += [*_crashes(measured), *_unparsed(measured), *_broken(target, score), *_the_run(target, measured)]
    say_pairs(console, pairs)
    if len(score.families) > 1:
        console.print()
        console.print(_families(score))


def show_tokens(console: Console, uses: Sequence[TokenUse]) -> None:
    if not uses:
        say(console, "no episode to count tokens of: every world broke")
        return
    own = uses[0]
    columns = ("context", "prompt/turn", "longest", "growth/turn", "action/turn", "total/episode", "prompt ratio")
    rows = [
        (
            use.context,
            f"{use.per_turn:.1f}",
            str(use.longest),
            "–" if use.growth is None else f"{use.growth:+.2f}",
            f"{use.actions_per_turn:.1f}",
            f"{use.per_episode:.0f}",
            f"{use.per_turn / own.per_turn:.2f}×" if own.per_turn else "–",
        )
        for use in uses
    ]
    console.print()
    console.print(table(f"Tokens of the same {number_of(own.turns, 'turn')}", columns, rows, numbers=columns[1:]))
    say(console, "growth: mean change of a prompt from turn to turn; action: as the context has it written, without reasoning")


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
            pairs += [
                (
                    f"{name}{k}",
                    f"{percent(share)} {interval(intervals[k])} of the tasks, {won} of {number_of(k, 'try', 'tries')}",
                )
            ]
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
    return [("failures", f"{count}: " + ", ".join(f"{ending_in_words(label)} {percent(share)}" for label, share in ranked))]


def _crashes(measured: Measured) -> Pairs:
    crashed = number_of(sum(t.stop.crashed for t in measured.played), "episode")
    if not (first := first_crash(measured.played)):
        return []
    return [("crashed", f"{crashed} ended because the world broke, counted as failures. The first: {first}")]


def _unparsed(measured: Measured) -> Pairs:
    """Where nothing that came back parses, what it looks like."""
    written = [s for t in measured.played for s in t.steps if s.completion.finish != "unusable"]
    if not written or any(s.valid for s in written):
        return []
    return [("unparsed", describe_completion("no completion parses; this is one", written[0].completion, valid=True))]


def _broken(target: Target, score: PanelScore) -> Pairs:
    if not score.unusable:
        return []
    first = next(iter(getattr(target.policy, "broken", ())), "")
    why = f" The first: {first}" if first else ""
    return [("unusable", f"{number_of(score.unusable, 'answer')}, each a turn that does not parse.{why}")]


def _the_run(target: Target, measured: Measured) -> Pairs:
    if target.run is None:
        return []
    if (earlier := measured.earlier) is None:
        pairs = [("the run said", "nothing about this checkpoint with these settings")]
    else:
        other = "NOT the same: other weights, number format, library versions or hardware"
        verdict = "the same" if measured.result["equals_run"] else other
        pairs = [("the run said", f"{percent(earlier['success'])} {after(earlier)}: {verdict}")]
    summary = find_summary(target.run)
    if summary is None:
        why = "summary.json is damaged" if (target.run / SUMMARY).exists() else "the run has not ended"
        return [*pairs, ("unfinished", f"{why}; `tacit train --resume {target.run}` goes on with it")]
    final, peak = final_and_peak([in_world(e, target.recipe.world) for e in summary["evaluations"]])
    pairs += [("its final", f"{percent(final['success'])} {after(final)}")]
    return [*pairs, ("its peak", f"{percent(peak['success'])} {after(peak)}")]


def _families(score: PanelScore) -> Table:
    columns = ("family", "success", "95% interval", "score", "steps", "episodes")
    rows = [
        (name, percent(f.success), interval(f.interval), f"{f.score:.3f}", f"{f.steps:.1f}", str(f.episodes))
        for name, f in score.families.items()
    ]
    return table("", columns, rows, numbers=columns[1:])
