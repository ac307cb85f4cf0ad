"""`tacit modules cost`: what modules cost beside a model that is prompted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from tacit.assembly.flags import Parser, check_at_least_one, options_of
from tacit.assembly.options import section_options
from tacit.cli.player_flags import add_panel_options
from tacit.cli.terminal import interval, make_console, percent, say, table
from tacit.core.errors import TacitError
from tacit.engines.chat.client import DEFAULT_KEY_VARIABLE
from tacit.modules.cost import Costs, Rival, Row, is_here, weigh
from tacit.runs.files import write_json
from tacit.training.settings import TrainSettings

PANEL = ("split", "tasks", "repeats", "temperature", "top_p", "top_k", "max_steps")
ENGINE = ("device", "dtype", "threads")


def cost(argv: Sequence[str]) -> int:
    arguments, said = make_parser().parse(argv)
    check_at_least_one(arguments, "batch")
    if bool(arguments.endpoint) != bool(arguments.model):
        raise TacitError("an endpoint has an address and a model: give --endpoint URL and --model NAME, or neither.")
    rivals = [Rival(name) for name in arguments.against]
    if arguments.endpoint:
        told = {"url": arguments.endpoint, "model": arguments.model, "key_variable": arguments.key_variable}
        rivals.append(Rival(arguments.model, {**told, "timeout_s": arguments.timeout}))
    console = make_console()
    costs = weigh(
        arguments.modules.expanduser(), said, rivals, wording=arguments.wording, actions=arguments.actions,
        max_tokens=arguments.max_tokens,
        base=arguments.base_model, fallback=arguments.fallback, batch=arguments.batch,
        watch=lambda name: say(console, f"playing: {name}", style="dim"),
    )  # fmt: skip
    show(console, costs, arguments.batch)
    if arguments.json:
        write_json(arguments.json.expanduser(), costs.to_json())
        say(console, f"\nwritten to {arguments.json}")
    return 0


def make_parser() -> Parser:
    parser = Parser(
        "modules cost",
        "What modules cost beside a prompted model on the same episodes: tokens, seconds, memory; what leaves the machine.",
        usage="tacit modules cost MODULES [--against MODEL …] [--endpoint URL --model NAME] [--tasks N] [settings]",
        epilog="Without --against and --endpoint: what ReAct would have read on the modules' own turns.",
    )
    parser.add_argument("modules", type=Path, metavar="MODULES", help="a skill module, or a directory of them")
    against_help = "a model to prompt as ReAct-1step and as ReAct-full: a saved one, a hub id; may be said several times"
    parser.add_argument("--against", action="append", default=[], metavar="MODEL", help=against_help)
    parser.add_argument("--endpoint", metavar="URL", help="or one behind an OpenAI-compatible address")
    parser.add_argument("--model", metavar="NAME", help="which of the endpoint's models")
    key_help = f"environment variable that holds the endpoint's key (default: {DEFAULT_KEY_VARIABLE})"
    parser.add_argument("--key-variable", default=DEFAULT_KEY_VARIABLE, metavar="NAME", help=key_help)
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for one answer (default: 120)")
    parser.add_argument(
        "--wording", default="full", metavar="NAME", help="the world's words for whoever is prompted (default: full)"
    )
    parser.add_argument("--no-actions", dest="actions", action="store_false", help="prompt without the list of actions")
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="episodes side by side; seconds are per episode (default: 1)"
    )
    tokens_help = "most tokens that a prompted model writes in a turn (default: 512, room to reason)"
    parser.add_argument("--max-tokens", type=int, default=0, metavar="N", help=tokens_help)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_argument("--base-model", metavar="MODEL", help="where the modules' base lies, if not where it was in training")
    parser.add_argument("--fallback", metavar="SKILL", help="the module for families that none is for (default: refuse them)")
    add_panel_options(parser, PANEL)
    parser.add_options("episodes", options_of(TrainSettings, only=("seed",)))
    parser.add_options("engine", [option for option in section_options()["engine"] if option.place[-1] in ENGINE])
    return parser


def show(console: Console, costs: Costs, batch: int) -> None:
    """As in the paper's Table 2: a line for each measure, a column for each player."""
    columns = [_column(row, costs.rows[0]) for row in costs.rows]
    lines = [(measure, *(column[measure] for column in columns)) for measure in columns[0]]
    say(console, f"\nCost of an episode: {costs.episodes} of {costs.panel} (hash {costs.panel_hash})", style="bold")
    console.print(table("", ("", *(row.name for row in costs.rows)), lines))
    aside = f"{batch} side by side" if batch > 1 else "one at a time"
    say(
        console,
        f"seconds: by the clock, {aside}, the world's included; memory: the process's peak, Python and libraries included",
    )
    said = partial(say, console)
    said("\nWhat leaves this machine")
    for row in costs.rows:
        if row.success is not None:
            said(f"  {row.name}: {leaving(row)}")
    said("\nOn the disk")
    for name, size in costs.disk.items():
        said(f"  {name}: {size / 1e6:,.2f} MB")


def leaving(row: Row) -> str:
    away = [host for host in row.hosts if not is_here(host)]
    if row.sent_bytes:
        where = f"to {', '.join(away)}" if away else f"to {', '.join(row.hosts)}, which is this machine"
        return f"{row.sent_bytes:,.0f} bytes of prompts per episode (task, observations, actions) {where}"
    if away:
        return f"nothing of the episodes; it asked {', '.join(away)} (for files of the model)"
    return "nothing; no connection to another machine was made while it was loaded and played"


def _column(row: Row, own: Row) -> dict[str, str]:
    won = f"{percent(row.success)} {interval(row.interval)}" if row.success is not None and row.interval else "–"
    memory = "–" if row.seconds is None else "elsewhere" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f} MB"
    return {
        "success": won,
        "steps": f"{row.steps:.1f}",
        "prompt tokens per turn": f"{row.prompt_tokens:.1f}",
        "written tokens per turn": f"{row.completion_tokens:.1f}",
        "tokens per episode": f"{row.tokens:,.0f}",
        "… beside the modules'": f"{row.tokens / own.tokens:.2f}×" if own.tokens else "–",
        "seconds per episode": f"{row.seconds:.2f}" if row.seconds is not None else "–",
        "memory": memory + (f" + {row.device_peak_bytes / 1e6:,.0f} MB on the GPU" if row.device_peak_bytes else ""),
    }
