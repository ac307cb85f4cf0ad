"""`tacit eval`: evaluate a run's checkpoint, a model, an expert, a rule agent or an endpoint on a fixed panel."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from tacit.cli.terminal import (
    add_checkpoint_flag,
    add_panel_options,
    add_shared_options,
    exit_status,
    interval,
    make_console,
    peek_method,
    percent,
    say,
    say_pairs,
    table,
)
from tacit.cli.train import can_redraw, pack_lines
from tacit.config.agents import Target, open_endpoint
from tacit.config.checks import check_output_directory, check_output_file
from tacit.config.flags import Parser
from tacit.config.measuring import PANEL_SETTINGS, EvaluationResult, PanelEvaluation, with_panel
from tacit.config.values import from_text
from tacit.core.bounds import AtLeastOne, Positive
from tacit.core.errors import TacitError
from tacit.core.progress import format_duration, format_stage, pluralize, report_elapsed
from tacit.core.protocols import SamplingPolicy, Scorer
from tacit.core.trust import flag_for_later
from tacit.engines.endpoint import DEFAULT_KEY_VARIABLE
from tacit.evaluation.behavior import TokenUse, describe_ending
from tacit.evaluation.scores import PanelScore, final_and_peak, in_world
from tacit.modules.agent import open_agent
from tacit.rollout.episodes import RolloutProgress, describe_completion
from tacit.rollout.worlds import describe_overlong, first_crash
from tacit.runs.directory import SUMMARY, find_summary
from tacit.runs.files import write_json

# Progress of an evaluation: episodes, turns, tokens per second, time left, a sample completion, endpoint retries.

LINE_EVERY_S = 5.0  # seconds between lines without a terminal


class EvalProgress(RolloutProgress):
    """A bar in a terminal; otherwise a line every few seconds."""

    def __init__(
        self,
        console: Console,
        episodes: int,
        max_steps: int = 0,
        policy: SamplingPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = LINE_EVERY_S,
    ) -> None:
        super().__init__(episodes, max_steps, policy, clock)
        self._console, self._shown, self._output = console, False, ExitStack()
        self._redraws = can_redraw(console)
        if self._redraws:
            live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True)
            self._output.enter_context(live)
        self._output.enter_context(report_elapsed(partial(say, console), self._lines, every_s))

    def close(self) -> None:
        self._output.close()

    def _trouble(self) -> str:
        return self._policy.trouble if self._policy else ""

    def _lines(self, elapsed_s: float) -> str:
        lines = []
        if self.first is not None and not self._shown:
            self._shown = True
            lines.append(describe_completion("first completion", *self.first))
        if not self._redraws:
            trouble = f"; {self._trouble()}" if self._trouble() else ""
            lines.append(f"eval: {', '.join(self.status())}{trouble}")
        return "\n".join(lines)

    def render(self) -> RenderableType:
        width = self._console.width
        lines = [Text(line, no_wrap=True) for line in pack_lines([*self.status(), *filter(None, [self._trouble()])], width)]
        bar = ProgressBar(total=max(1, self._episodes), completed=self._before + self._done, width=min(width - 6, 40))
        return Group(bar, *lines) if width >= 16 else Group(*lines)


# The printed results.

Pairs = list[tuple[str, str]]


def show(console: Console, target: Target, measured: EvaluationResult) -> None:
    score = measured.score
    say(console, f"success {score}", style="bold")
    say_pairs(console, [*_what(target, score), *_results(measured), *_trouble(target, measured), *_the_run(target, measured)])
    if len(score.families) > 1:
        columns = ("family", "success", "95% interval", "score", "steps", "episodes")
        rows = [
            (name, percent(f.success), interval(f.interval), f"{f.score:.3f}", f"{f.steps:.1f}", str(f.episodes))
            for name, f in score.families.items()
        ]
        console.print()
        console.print(table("", columns, rows, numbers=columns[1:]))


def show_tokens(console: Console, uses: Sequence[TokenUse]) -> None:
    if not uses:
        say(console, "no tokens to count: the world crashed in every episode")
        return
    own = uses[0].figures["prompt_tokens_per_turn"]
    columns = ("context", "prompt", "longest", "growth", "action", "episode", "ratio")
    rows = []
    for use in uses:
        figures = use.figures
        prompt, growth = figures["prompt_tokens_per_turn"], figures["growth_per_turn"]
        rows.append((use.context, f"{prompt:.1f}", str(figures["longest_prompt"]), "–" if growth is None else f"{growth:+.2f}",
                     f"{figures['action_tokens_per_turn']:.1f}", f"{figures['tokens_per_episode']:.0f}",
                     f"{prompt / own:.2f}×" if own else "–"))  # fmt: skip
    console.print()
    console.print(
        table(f"Tokens of the same {pluralize(uses[0].figures['turns'], 'turn')}", columns, rows, numbers=columns[1:])
    )
    say(console, "prompt, growth, action: mean per turn; growth: change from turn to turn; action: without reasoning")
    say(console, "episode: mean of all tokens of an episode; ratio: prompts compared with the first row")


def _what(target: Target, score: PanelScore) -> Pairs:
    sampling = score.sampling
    panel = f"{score.panel} (version {score.panel_version}, hash {score.panel_hash})"
    pairs = [("of", target.identity or target.label), ("panel", panel)]
    pairs += [("checkpoint", str(target.checkpoint))] if target.checkpoint else []
    pairs += [("seed", str(score.seed))]
    if not score.completion_tokens:
        return pairs
    decoding = f"temperature {sampling['temperature']:g}, top_p {sampling['top_p']:g}, top_k {sampling['top_k']}"
    weights = [] if target.identity else [("weights", f"{target.fingerprint[:16]}, {target.policy.numbers}")]
    return [*pairs, ("sampling", decoding), *weights]


def _results(measured: EvaluationResult) -> Pairs:
    score, how = measured.score, measured.behavior
    parts = ", ".join(f"{name} {share:.3f}" for name, share in how.score_parts.items())
    pairs = [("score", f"{score.score:.3f}, the mean graded outcome{f' ({parts})' if parts else ''}")]
    if families := len(score.families) if len(score.families) > 1 else 0:
        pairs.append(("macro", f"{percent(score.macro)} {interval(score.macro_interval)}, the mean over {families} families"))
    for name, shares, intervals, won in (
        ("pass@", score.pass_at, score.pass_interval, "at least one"),
        ("SC@", score.majority_at, score.majority_interval, "most"),
    ):
        for k, share in shares.items():
            tries = f"{won} of {pluralize(k, 'try', 'tries')}"
            pairs.append((f"{name}{k}", f"{percent(share)} {interval(intervals[k])} of the tasks, {tries}"))
    of_successes = f", {score.success_steps:.1f} where it succeeded" if score.successes else ""
    pairs.append(("steps", f"{score.steps:.1f} per episode{of_successes}"))
    steps = [s for t in measured.played for s in t.steps]
    ran = sum(not s.valid and s.effective for s in steps) / max(1, len(steps))
    loose = f" ({percent(ran)} still ran)" if ran else ""
    refused = f"{percent(score.ineffective)} were refused by the world"
    pairs.append(("actions", f"{percent(score.invalid)} not in the full format{loose}, {refused}"))
    if how.all_repeats is not None:
        again = f", {percent(how.repeats)} in successes" if how.repeats is not None else ""
        pairs.append(("repeated", f"{percent(how.all_repeats)} of all actions{again}"))
    if how.revisits:
        pairs.append(("revisits", f"{how.revisits:.2f} per success"))
    if score.completion_tokens:
        read, written = score.episode_prompt_tokens, score.episode_completion_tokens
        pairs.append(("per turn", f"{score.prompt_tokens:.1f} tokens read, {score.completion_tokens:.1f} written"))
        pairs.append(("per episode", f"{read:.1f} tokens read, {written:.1f} written"))
    return pairs


def _trouble(target: Target, measured: EvaluationResult) -> Pairs:
    """Failures, crashes, an example completion if none was in the full format, and unusable answers."""
    score, how, pairs = measured.score, measured.behavior, []
    if how.failures:
        ranked = sorted(how.failures.items(), key=lambda item: -item[1])
        kinds = ", ".join(f"{describe_ending(label)} {percent(share)}" for label, share in ranked)
        pairs.append(("failures", f"{how.episodes - how.successes}: {kinds}"))
    if overlong := describe_overlong(measured.played):
        pairs.append(("too long", overlong))
    if first := first_crash(measured.played):
        crashed = pluralize(sum(t.stop.crashed for t in measured.played), "episode")
        pairs.append(("crashed", f"{crashed} ended because the world broke, counted as failures. The first: {first}"))
    written = [s for t in measured.played for s in t.steps if s.completion.finish != "unusable"]
    if written and not any(s.valid for s in written):
        ran = next((s for s in written if s.effective), None)
        label, why = ("format", "no completion has the full format") if ran else ("unparsed", "no completion parses")
        pairs.append((label, describe_completion(f"{why}; this is one", (ran or written[0]).completion, valid=True)))
    if score.unusable:
        first = next(iter(target.policy.broken), "")
        why = f" The first: {first}" if first else ""
        pairs.append(("unusable", f"{pluralize(score.unusable, 'answer')}, each a turn that does not parse.{why}"))
    return pairs


def _the_run(target: Target, measured: EvaluationResult) -> Pairs:
    if target.run is None:
        return []
    if (earlier := measured.earlier) is None:
        pairs = [("in the run", "no evaluation of this checkpoint with these settings")]
    else:
        other = "NOT the same: other weights, world code, number format, library versions or hardware"
        verdict = "the same" if measured.result["equals_run"] else other
        pairs = [("in the run", f"{percent(earlier['success'])} {format_stage(earlier)}: {verdict}")]
    summary = find_summary(target.run)
    if summary is None or not summary.get("evaluations"):
        why = "summary.json is damaged" if (target.run / SUMMARY).exists() else "the run has not ended"
        return [*pairs, ("unfinished", f"{why}; `tacit train --resume {target.run}{flag_for_later()}` resumes it")]
    final, peak = final_and_peak([in_world(e, target.recipe.world) for e in summary["evaluations"]])
    pairs += [("its final", f"{percent(final['success'])} {format_stage(final)}")]
    return [*pairs, ("its peak", f"{percent(peak['success'])} {format_stage(peak)}")]


PRINTED = Path("-")  # value of --json without a file: print the result


def run(argv: Sequence[str]) -> int:
    parser = make_parser(peek_method(argv, "eval"))
    arguments, overrides = parser.parse(argv)
    _check(parser, arguments)
    ks = sorted(set(from_text(tuple[int, ...], arguments.k, "--k"))) if arguments.k else ()
    if any(k < 1 for k in ks):
        raise TacitError(f"--k {arguments.k}: each k must be at least 1.")
    settings = with_panel(overrides, arguments.panel, arguments.target)
    console, opened = make_console(), arguments.target or arguments.endpoint
    with report_elapsed(partial(say, console), lambda spent: f"eval: loading {opened}, {format_duration(spent)}"):
        if arguments.endpoint:
            at = (arguments.endpoint, arguments.model or "", arguments.key_variable)
            target = open_endpoint(settings, *at, arguments.concurrency, arguments.timeout)
        else:
            target = open_agent(
                arguments.target, settings, arguments.checkpoint, base=arguments.base_model, fallback=arguments.fallback
            )
    if arguments.tokens and not isinstance(target.policy, Scorer):  # an expert, a rule agent, an endpoint
        own = f"a policy's own tokenizer, and {target.label!r} has none here"
        raise TacitError(f"--tokens counts with {own}; give a run or a model.")
    evaluation = PanelEvaluation(target, tuple(ks), arguments.out, arguments.fresh, settings)
    if evaluation.panel.difference():
        say(console, f"warning: {evaluation.panel.difference()}", style="yellow")
    progress = EvalProgress(console, evaluation.episodes, evaluation.rules.max_steps, target.policy)
    try:
        measured = evaluation.play(arguments.batch, progress, progress.resume)
    except KeyboardInterrupt as stop:
        kept = f" Finished episodes are in {evaluation.journal.path}; the same command resumes." if evaluation.journal else ""
        print(f"\nstopped.{kept}", file=sys.stderr)
        return exit_status(stop)
    finally:
        progress.close()
    for note in evaluation.journal.notes if evaluation.journal else ():
        say(console, f"note: {note}")
    show(console, target, measured)
    if arguments.tokens:
        show_tokens(console, evaluation.account(measured))
    if (place := evaluation.keep(measured)) is not None:
        print(f"written to {place}")
    if arguments.json == PRINTED:
        print(json.dumps(measured.result))
    elif arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.json, measured.result)
        print(f"written to {arguments.json}")
    return 0


def make_parser(method: str) -> Parser:
    parser = Parser(
        "eval",
        "Evaluate a run, a model, the expert, the rule agent or an endpoint on a fixed panel of tasks.",
        usage="tacit eval TARGET [--world NAME] [settings] | --endpoint URL --model NAME --world NAME [settings]",
        epilog="For a run, every default is the run's own setting. The same command resumes a stopped evaluation.",
    )
    target_help = "run directory or checkpoint, skill modules, model (tiny, a directory, a hub id), `expert`, or `reader`, the "
    parser.add_argument("target", nargs="?", metavar="TARGET", help=target_help + "world's rule agent")
    add_checkpoint_flag(parser)
    panel_help = "panel: a name from `tacit list panels` (countdown/test/128), or a .json or .jsonl file of tasks"
    parser.flag("--panel", None, panel_help, "NAME|FILE")
    parser.flag("--k", "", "k of pass@k and SC@k (default: the repeats, if several)", "K,…")
    parser.flag("--batch", 256, "episodes played at a time", bound=AtLeastOne)
    tokens_help = "also count the prompt tokens of ReAct-1step and ReAct-full, with and without a list of actions,"
    parser.flag("--tokens", False, f"{tokens_help} on the same episodes")
    json_help = "write the result to FILE, or print it as one JSON object on the last line"
    parser.flag("--json", Path, json_help, "FILE", nargs="?", const=PRINTED)
    out_help = "directory for the episodes and the result (default: evaluations/ of the run, or evaluations/TARGET here)"
    parser.flag("--out", Path, out_help, "DIR")
    parser.flag("--fresh", False, "play every episode again; earlier ones are moved aside")
    add_panel_options(parser, PANEL_SETTINGS)
    group = parser.add_argument_group("endpoint: a model behind an OpenAI-compatible API")
    parser.flag("--endpoint", None, "its URL, such as http://localhost:8000/v1", "URL", group=group)
    parser.flag("--model", None, "name of the model there", "NAME", group=group)
    key_help = f"environment variable with the key (default: {DEFAULT_KEY_VARIABLE})"
    parser.flag("--key-variable", DEFAULT_KEY_VARIABLE, key_help, "NAME", group=group)
    parser.flag("--concurrency", 16, "concurrent requests", group=group, bound=AtLeastOne)
    parser.flag("--timeout", 120.0, "timeout of a request", "SECONDS", group=group, bound=Positive)
    add_shared_options(parser, method, trains=False)
    return parser


def _check(parser: Parser, arguments: Namespace) -> None:
    if not arguments.target and not arguments.endpoint:
        parser.error("the following arguments are required: TARGET (or --endpoint URL --model NAME)")
    if arguments.endpoint and arguments.target:
        raise TacitError(f"give TARGET ({arguments.target}) or --endpoint {arguments.endpoint}, not both.")
    if arguments.model and not arguments.endpoint:
        raise TacitError(f"--model {arguments.model} is for --endpoint; to evaluate a local model give it as TARGET.")
    if arguments.endpoint and arguments.checkpoint:
        raise TacitError(f"--checkpoint {arguments.checkpoint} is for runs; remove it for an endpoint.")
    if arguments.out and (arguments.out.suffix == ".json" or arguments.out.is_file()):
        raise TacitError(f"--out {arguments.out} must be a directory; to write the result to a file use --json FILE.")
    if arguments.out:
        check_output_directory(arguments.out)
    if arguments.json not in (None, PRINTED):
        check_output_file(arguments.json, "--json")
