"""Printing, signals and shared flags of the commands."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn
from unicodedata import category

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tacit.config.agents import RULE_AGENT_METHOD
from tacit.config.checks import RULE_AGENT
from tacit.config.flags import TOP_OPTIONS, Parser, method_options, options_of, peek, section_options
from tacit.config.measuring import run_of
from tacit.config.recipe import DEFAULT_METHOD, method_name
from tacit.core.errors import unknown
from tacit.core.progress import format_stage
from tacit.methods import get_method
from tacit.methods.combine import CombinedMethod
from tacit.runs.directory import read_settings
from tacit.training.settings import EvaluationSettings, TrainSettings

PLAIN_WIDTH = 120  # columns if the output is a file or pipe
_HARMLESS = "\n\t\u200c\u200d"


class PipedConsole(Console):
    """Raises BrokenPipeError instead of exiting (`tacit list | head`), and prints everything through `visible`."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def visible(text: str) -> str:
    r"""Escape what a terminal would interpret: control characters, direction marks, lone surrogates. Newlines, tabs, spaces and
    joiners stay.

    >>> print(visible("clear" + chr(27) + "[2J"))
    clear\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _HARMLESS or category(c) == "Zs" else ascii(c)[1:-1] for c in text)


def make_console(file: IO[str] | None = None) -> Console:
    console = PipedConsole(file=file, highlight=False)
    fits = console.is_terminal or "COLUMNS" in os.environ
    return console if fits else PipedConsole(file=file, highlight=False, width=PLAIN_WIDTH)


def say(console: Console, text: str, style: str = "") -> None:
    """Print one line without markup or wrapping."""
    console.print(Text(text, style=style), soft_wrap=True)


def say_first(console: Console, lines: Sequence[str], count: int, style: str, indent: str = "", rest: str = "") -> None:
    """Print the first lines, and `and N more` with where the rest is."""
    for line in lines[:count]:
        say(console, f"{indent}{line}", style)
    if len(lines) > count:
        say(console, f"{indent}and {len(lines) - count} more{rest}", style)


Command = tuple[Callable[[Sequence[str]], int], str]  # a subcommand and its summary


def dispatch(
    argv: Sequence[str],
    name: str,
    summary: str,
    commands: Mapping[str, Command],
    otherwise: Callable[[Sequence[str]], int] | None = None,
    operand: str = "",
    more: str = "",
) -> int:
    """Run a subcommand of the command `name`. `otherwise` takes words that start with a path: `tacit bank BANK`. `more`: the
    end of the help."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, commands))
        lines = "\n".join(f"  {command:<{width}}  {text}" for command, (_, text) in commands.items())
        usage = f"usage: {name} COMMAND ..." + (f"\n       {name} {operand}" if operand else "")
        print(f"{usage}\n\n{summary}\n\n{lines}\n\nSee `{name} COMMAND --help` for the options of a command.{more}")
        return 0
    if words[0] in commands:
        return commands[words[0]][0](words[1:])
    if otherwise is None or (words[0].isalpha() and not Path(words[0]).exists()):
        raise unknown(f"command of `{name}`", words[0], commands)
    return otherwise(words)


def ask_yes(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print("\nno answer; --yes runs drafts without asking.", file=sys.stderr)
        return False


def say_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """`label  value` lines, the values in one column."""
    width = max(len(label) for label, _ in pairs)
    for label, value in pairs:
        console.print(Text.assemble((f"  {label:<{width}}  ", "dim"), value), soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], numbers: Sequence[str] = ()) -> Table:
    """A table whose first column and `numbers` columns are never wrapped or cut."""
    cells = [[cell if isinstance(cell, Text) else Text(visible(cell)) for cell in row] for row in rows]
    grid = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        whole = i == 0 or column in numbers
        grid.add_column(
            Text(column, style="dim"),
            justify="right" if column in numbers else "left",
            no_wrap=whole,
            overflow="fold",  # a narrow terminal breaks words rather than dropping their ends
            min_width=max((len(row[i]) for row in cells), default=0) if whole else None,
        )
    for row in cells:
        grid.add_row(*row)
    return grid


def shorten(text: str, width: int) -> str:
    """Its words on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def interval(low_high: Sequence[float]) -> str:
    low, high = low_high
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def score_rows(evaluations: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """(stage, success, interval, episodes) of the last evaluation per stage, and of the best in RL if it was not the last."""
    last = {e["stage"]: e for e in evaluations}
    rows = [(format_stage(e), e) for e in last.values()]
    during_rl = [e for e in evaluations if e["stage"] == "rl"]
    peak = max(during_rl, key=lambda e: e["success"], default=None)
    if peak is not None and peak["success"] > last["rl"]["success"]:
        rows.append((f"peak, {format_stage(peak)}", peak))
    return [(name, percent(e["success"]), interval(e["interval"]), str(e["episodes"])) for name, e in rows]


# Stopping: SIGTERM and SIGHUP act like ^C, so that open files are closed and the command can say how to continue.

SIGNALED = 128  # exit status of a command ended by signal n is 128 + n


class StopSignal(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Only for signals with the default action; one ignored by `nohup` stays ignored."""

    def stop(number: int, frame: Any) -> None:
        raise StopSignal(number)

    here = threading.current_thread() is threading.main_thread()
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in known if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def exit_status(stop: KeyboardInterrupt) -> int:
    return SIGNALED + (stop.number if isinstance(stop, StopSignal) else signal.SIGINT)


# Shared flags of commands that open an agent.

RUN_SETTINGS = ("seed", "max_tokens", "workers", "workers_at", "world_timeout_s")


def add_checkpoint_flag(parser: Parser) -> None:
    help = "checkpoint of a run: newest, best, sft, rl, untrained, or a name such as rl-000020 (default: newest)"
    parser.flag("--checkpoint", "", help, "NAME")


def add_panel_options(parser: Parser, settings: Iterable[str]) -> None:
    others = [o for o in options_of(TrainSettings) if o.name in ("families", "sft.expert")]
    parser.add_options("panel and sampling", [*options_of(EvaluationSettings, ("evaluation",), only=settings), *others])


TRAINING_ONLY = ("clip_norm", "weight_decay", "betas", "lora_dropout", "gradient_checkpointing")  # of [engine]


def add_shared_options(parser: Parser, method: str, trains: bool = True) -> None:
    """Flags for the world, the prompt and the engine. Without `trains`, `--help` hides the settings that only training uses;
    the flags are still accepted."""
    parser.add_options("world and method", [o for o in TOP_OPTIONS if o.place[0] in ("world", "method")])
    own = {table: [o for o in method_options(method) if o.place[0] == table] for table in ("method", "prompt")}
    cls = get_method(method)
    # The prompt of a built-in method depends on [prompt] alone; a user's method may read its other settings.
    members = cls.member_classes.values() if issubclass(cls, CombinedMethod) else [cls]
    unused = not trains and all(member.__module__.startswith("tacit.methods.") for member in members)
    parser.add_options(f"method {method}", own["method"], hidden=unused)
    parser.add_options(f"prompt of method {method}", own["prompt"])
    parser.add_options("episodes", options_of(TrainSettings, only=RUN_SETTINGS))
    group = parser.add_argument_group("skill modules")
    parser.flag("--base-model", None, "path of the base model, if it has moved since training", "MODEL", group=group)
    parser.flag("--fallback", None, "module for families without one (default: refuse them)", "SKILL", group=group)
    sections = section_options()
    skipped = [o for o in sections["engine"] if not trains and o.place[-1] in TRAINING_ONLY]
    parser.add_options("engine", [o for o in sections["engine"] if o not in skipped])
    parser.add_options("training", skipped, hidden=True)
    parser.add_options("tiny", sections["tiny"])


def peek_method(argv: Sequence[str], command: str) -> str:
    """The method whose flags to offer: the named one, else the run's."""
    seen, rest = peek(command, argv, "--method")
    if seen.method:
        return seen.method
    if RULE_AGENT in rest:
        return RULE_AGENT_METHOD
    run = next((run for word in rest if not word.startswith("-") and (run := run_of(word))), None)
    return method_name(read_settings(run)) if run else DEFAULT_METHOD
