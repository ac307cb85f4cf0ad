"""`tacit train`: its flags, live progress and summary."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tacit.cli.terminal import Command, dispatch, exit_status, make_console, say, say_pairs, score_rows, table
from tacit.config import running
from tacit.config.checks import AGENTS, MAY_CHANGE, Prepared, check_new_run, is_finished, prepare
from tacit.config.flags import RUN_OPTION, TOP_OPTIONS, Option, Parser, method_options, peek, section_options, train_options
from tacit.config.portable import is_pack, pack_run, unpack_run
from tacit.config.recipe import (
    DEFAULT_ENGINE,
    DEFAULT_MODEL,
    Document,
    Recipe,
    engine_name,
    method_name,
    override,
    read_document,
    run_recipe,
)
from tacit.config.values import expand_path
from tacit.core.errors import TacitError
from tacit.core.progress import format_duration, format_stage, pluralize
from tacit.core.trust import flag_for_later
from tacit.core.types import PLAIN
from tacit.evaluation.panels import panel_name
from tacit.evaluation.scores import final_and_peak
from tacit.methods import get_method
from tacit.runs.alarms import read_alarms
from tacit.runs.directory import read_settings, read_summary, resume_command
from tacit.training.reporting import PlainReporter, Reporter, format_metrics

CONFIG_HELP = "settings file (TOML) or name of a packaged recipe (`tacit list recipes`); flags override it"


def run(argv: Sequence[str]) -> int:
    seen, others = peek("train", argv, "--resume")
    if seen.resume is not None and is_pack(packed := expand_path(seen.resume)):
        argv = ["--resume", str(restore(packed)), *others]
    parser = make_parser(*peek_arguments(argv))
    arguments, overrides = parser.parse(argv)
    if arguments.resume is not None:
        if arguments.config is not None:
            raise TacitError("--resume uses the run's own settings; remove --config.")
        path = arguments.resume
        stored = read_settings(path)
        before, after = Recipe.from_json(stored), Recipe.from_json(override(stored, overrides))
        if ("out",) in overrides and after.out.resolve() != path.resolve():
            raise TacitError(f"--resume continues {path} in place; to continue elsewhere, copy the directory.")
        if is_finished(path, before, after):
            console = make_console()
            say(console, f"{path} is finished; train longer with a larger --iterations.")
            show_summary(console, read_summary(path), path)
            return 0
        return run_prepared(prepare(replace(after, out=path)), resume=True)
    recipe = Recipe.resolve(arguments.config, overrides)
    check_new_run(recipe.out)
    return run_prepared(prepare(recipe), resume=False)


def make_parser(method: str, model: str = DEFAULT_MODEL, engine: str = DEFAULT_ENGINE) -> Parser:
    """A parser with all settings as flags; the flags depend on the method, the model and the engine."""
    parser = Parser(
        "train",
        "Train a policy in a world: imitation if requested, then RL with a method.",
        brief=True,
        usage="tacit train [--config FILE] [settings] | --resume RUN",
        epilog="`tacit list` shows worlds, methods, engines and models; `tacit list recipes` the values of --config.",
    )
    parser.add_argument("--config", type=run_recipe, metavar="FILE", help=CONFIG_HELP)
    parser.flag("--resume", Path, f"resume a run from its last checkpoint; only {MAY_CHANGE} may change", "RUN")
    add_training_options(parser, method, model, engine)
    return parser


def add_training_options(
    parser: Parser, method: str, model: str, engine: str = DEFAULT_ENGINE, out: Option = RUN_OPTION
) -> None:
    parser.add_options("what to run", (*TOP_OPTIONS, out))
    own = method_options(method)
    first_line = (get_method(method).__doc__ or "").strip().splitlines()
    parser.add_options(
        f"method {method}",
        [o for o in own if o.place[0] == "method"],
        f"{first_line[0] if first_line else ''} For another method: --method NAME --help.",
    )
    parser.add_options("prompt: what the agent reads and how it writes actions", [o for o in own if o.place[0] == "prompt"])
    parser.add_options("schedule (defaults: the method's published values)", [o for o in own if o.place[0] == "schedule"])
    parser.add_options("run", train_options())
    titles = {
        "sft": "sft: imitate the world's expert or recorded episodes before RL",
        "evaluation": "evaluation: the fixed panel of tasks a run is evaluated on",
        "engine": "engine: how the model is loaded, trained and sampled",
        "tiny": "tiny: sizes of a model trained from scratch",
    }
    for section, options in section_options(model, engine).items():
        parser.add_options(titles[section], options)


def peek_arguments(argv: Sequence[str], resumable: bool = True) -> tuple[str, str, str]:
    """(method, model, engine) of a command line, its settings file or its run; they decide the other flags."""
    seen, _ = peek("train", argv, "--config", "--resume", "--method", "--model", "--engine")
    document: Document = {}
    if seen.resume is not None and resumable:
        document = read_settings(expand_path(seen.resume))
    elif seen.config is not None:
        document = read_document(run_recipe(seen.config))
    model = seen.model or str(document.get("model", DEFAULT_MODEL))
    return seen.method or method_name(document), model, seen.engine or engine_name(document)


def run_prepared(prepared: Prepared, resume: bool) -> int:
    recipe, console = prepared.recipe, make_console()
    show_header(console, prepared)
    started = [resume]
    try:
        summary = running.run_training(prepared, resume, lambda: make_reporter(console), on_start=lambda: started.append(True))
    except KeyboardInterrupt as stop:
        go_on = f"tacit train --resume {recipe.out}{flag_for_later()}"
        remedy = f"Continue with `{go_on}`." if any(started) else "Nothing was written."
        print(f"\nstopped. {remedy}", file=sys.stderr)
        return exit_status(stop)
    show_summary(console, summary, recipe.out)
    return 0


def show_header(console: Console, prepared: Prepared) -> None:
    recipe, worlds = prepared.recipe, prepared.worlds
    train, schedule = recipe.train, recipe.schedule
    say(console, f"{recipe.method} on {recipe.world}", style="bold")
    pairs = [("world", world.summary) for world in worlds] + [("model", recipe.model)]
    pairs += [(name, policy.model) for name, policy in recipe.policies.items()]
    if recipe.engine_name != DEFAULT_ENGINE:
        pairs.append(("engine", recipe.engine_name))
    if train.sft.imitates:
        source = f"recorded in {train.sft.from_}" if train.sft.from_ else "shown by the "
        source += "" if train.sft.from_ else train.sft.expert or next(iter(worlds[0].experts))
        length = f"{train.sft.epochs:g} epochs in batches" if train.sft.epochs else pluralize(train.sft.steps, "step")
        pairs.append(("sft", f"{length} of {pluralize(train.sft.batch, 'turn')} {source}, lr {train.sft.lr:g}"))
    if schedule.iterations:
        size = f"{pluralize(schedule.groups, 'task')} × {pluralize(schedule.group_size, 'episode')}"
        pairs.append(("rl", f"{pluralize(schedule.iterations, 'iteration')} of {size}, lr {schedule.lr:g}"))
    for world, place in zip(worlds, recipe.places, strict=True):
        if not world.playable:
            continue
        measured = place.train.evaluation
        panel = measured.panel or panel_name(world.name, measured.split, measured.tasks, place.train.family_names)
        pairs.append(("panel", f"{panel}, temperature {measured.temperature:g}"))
    pairs.append(("seed", str(train.seed)))
    pairs += [("run", str(recipe.out)), *(("note", note) for note in recipe.notes)]
    say_pairs(console, pairs)


def show_summary(console: Console, summary: dict[str, Any], path: Path) -> None:
    console.print()
    columns = ("stage", "success", "95% interval", "episodes")
    measured = bool(summary["evaluations"])
    if measured:
        console.print(table("", columns, score_rows(summary["evaluations"]), numbers=columns[1:]))
        console.print()
    for where in dict.fromkeys(panel_label(e) for e in summary.get("further", ())):
        rows = score_rows([e for e in summary["further"] if panel_label(e) == where])
        console.print(table(where, columns, rows, numbers=columns[1:]))
        console.print()
    for alarm in read_alarms(path):
        say(console, f"warning at rl {alarm.step}: {alarm}", style="yellow")
    spent = f"{pluralize(summary['episodes'], 'episode')}, {pluralize(summary['generated_tokens'], 'token')}"
    pairs = [("panel", f"{summary['panel']} (hash {summary['panel_hash']})")] if measured else []
    pairs += [("seed", str(summary["settings"].get("seed", 0))), ("time", f"{format_duration(summary['wall_s'])}, {spent}")]
    say_pairs(console, [*pairs, ("weights", summary["digest"][:16]), ("run", str(path))])
    if measured and summary["settings"].get("model") not in AGENTS:
        worlds = summary["evaluations"][-1].get("worlds", ())
        # A finished run is resumed without importing its world, so look for code of the user's in its settings, too.
        here = (f" --world {next(iter(worlds))}" if worlds else "") + flag_for_later(summary["settings"])
        again = "repeats the last evaluation"
        again += f" in one world; the others are {', '.join(list(worlds)[1:])}" if worlds else ""
        say(console, f"\nNext: tacit eval {path}{here}        {again}\n      tacit play --policy {path}{here}")
        final, peak = final_and_peak(summary["evaluations"])
        if peak["success"] > final["success"]:
            best = f"the best checkpoint, {format_stage(peak)}"
            say(console, f"      tacit eval {path}{here} --checkpoint best        {best}")


def panel_label(score: Mapping[str, Any]) -> str:
    """`on alfworld/unseen/96`, and the condition unless it is plain."""
    name = score.get("condition", {}).get("name", PLAIN.name)
    return f"on {score['panel']}" + ("" if name == PLAIN.name else f", under condition {name}")


# Live progress in a terminal: a bar, the main metrics, and evaluations above.

RECENT = 20  # steps used to estimate the time left


def make_reporter(console: Console) -> Reporter:
    """Live in a terminal, plain lines elsewhere."""
    return LiveReporter(console) if can_redraw(console) else PlainReporter(cast(TextIO, console.file))


def can_redraw(console: Console) -> bool:
    return console.is_terminal and os.environ.get("TERM") != "dumb"


class LiveReporter:
    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._name, self._total, self._step, self._now = "", 0, 0, ""
        self._metrics: dict[str, float] = {}
        self._ticks: deque[tuple[int, float]] = deque(maxlen=RECENT + 1)
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True)
        self._live.start()

    def stage(self, name: str, total: int, done: int) -> None:
        self._name, self._total, self._step, self._metrics, self._now = name, total, done, {}, ""
        self._ticks.clear()
        self._ticks.append((done, self._clock()))

    def step(self, step: int, metrics: dict[str, float]) -> None:
        now = self._clock()
        last_step, last_time = self._ticks[-1] if self._ticks else (step - 1, now)
        # Imitation reports tokens but no rate.
        if "tokens_per_s" not in metrics and "tokens" in metrics and now > last_time:
            metrics = {**metrics, "tokens_per_s": metrics["tokens"] * (step - last_step) / (now - last_time)}
        self._step, self._metrics, self._now = step, metrics, ""
        self._ticks.append((step, now))
        self._live.refresh()

    def say(self, text: str) -> None:
        self._now = ""
        say(self._console, text, style="yellow" if text.startswith("warning") else "")

    def now(self, text: str) -> None:
        self._now = text
        self._live.refresh()

    def close(self) -> None:
        self._live.stop()

    def seconds_left(self) -> float | None:
        """From the pace of the last steps, including evaluations; None before the first."""
        if len(self._ticks) < 2 or self._ticks[-1][0] == self._ticks[0][0]:
            return None
        (first, began), (last, now) = self._ticks[0], self._ticks[-1]
        return max(0.0, (now - began) / (last - first) * (self._total - last) - (self._clock() - now))

    def render(self) -> RenderableType:
        left, width = self.seconds_left(), self._console.width
        now = pack_lines(self._now.split(", "), width) if self._now else []
        if not self._name:
            return _lines(now)
        counts = [f"{self._step}/{self._total}", *([f"{format_duration(left)} left"] if left is not None else [])]
        numbers = format_metrics(self._metrics)
        room = width - len(self._name) - len("  ".join(counts)) - 4
        if room < 10:  # too narrow for a bar: show the numbers only
            return _lines([*pack_lines([self._name, *counts, *numbers], width), *now])
        bar = ProgressBar(total=max(1, self._total), completed=self._step, width=min(room, 40))
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(Text(self._name, style="bold"), bar, Text("  ".join(counts), no_wrap=True))
        return Group(line, _lines([*pack_lines(numbers, width), *now]))


def _lines(lines: Sequence[str]) -> RenderableType:
    return Group(*(Text(line, no_wrap=True) for line in lines))


def pack_lines(parts: Sequence[str], width: int) -> list[str]:
    """Join parts into as few lines as fit; never break inside a part."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


# `tacit runs`: pack a run, and unpack it on another machine to resume it there.


def pack_or_unpack(argv: Sequence[str]) -> int:
    commands: dict[str, Command] = {
        "pack": (pack, "write settings, metrics and one checkpoint in parts of at most 16 MB"),
        "unpack": (unpack, "restore the run directory; `tacit train --resume DIR` does this too"),
    }
    return dispatch(argv, "tacit runs", "Pack a run into a few files, to resume it on another machine.", commands)


def pack(argv: Sequence[str]) -> int:
    parser = Parser("runs pack", "Write settings, metrics and one checkpoint of a run, in parts of at most 16 MB.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--out", Path, "new directory of the pack (default: RUN.pack)", "DIR")
    parser.flag("--checkpoint", "newest", "checkpoint to pack: newest, best, sft, or a name such as rl-000020", "NAME")
    parser.flag("--compact", False, "round the optimizer's state: about a sixth of the size; the weights stay exact")
    arguments = parser.parse_args(argv)
    out = arguments.out or arguments.run.with_name(arguments.run.resolve().name + ".pack")
    manifest = pack_run(arguments.run, out, arguments.checkpoint, arguments.compact)
    size = sum(part["bytes"] for part in manifest["parts"])
    console = make_console()
    say(console, f"{out}: {manifest['checkpoint']} in {pluralize(len(manifest['parts']), 'part')}, {size / 1e6:.1f} MB.")
    flag = flag_for_later(read_settings(arguments.run))
    say(console, f"Copy the directory to the other machine and resume there: tacit train --resume {out.name}{flag}")
    return 0


def unpack(argv: Sequence[str]) -> int:
    parser = Parser("runs unpack", "Restore a run that `tacit runs pack` packed.")
    parser.add_argument("pack", type=Path, metavar="DIR", help="directory of the pack")
    parser.flag("--out", Path, "new run directory (default: the run's name, beside the pack)", "RUN")
    parser.flag("--model", "", "path of the base model on this machine", "MODEL")
    arguments = parser.parse_args(argv)
    restore(arguments.pack, arguments.out, arguments.model)
    return 0


def restore(pack: Path, out: Path | None = None, model: str = "") -> Path:
    console = make_console()
    path, before = unpack_run(pack, out, model)
    if before:
        say(console, f"note: {pack} was unpacked before ({before}); both runs continue from the same iteration.")
    say(console, f"unpacked to {path}; continue it with: {resume_command(path)}")
    return path
