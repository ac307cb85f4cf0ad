"""`tacit eval`: play a fixed panel with a run's checkpoint, a model, expert, reader or endpoint, and say how it went."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tacit.assembly.flags import Parser, check_at_least_one
from tacit.assembly.measuring import Sitting, check_tokens
from tacit.assembly.panel_choice import with_panel
from tacit.assembly.players import Endpoint, Target, open_endpoint
from tacit.assembly.recipe import Said
from tacit.assembly.values import from_text
from tacit.cli.eval_progress import EvalProgress
from tacit.cli.eval_view import show, show_tokens
from tacit.cli.player_flags import add_checkpoint_flag, add_panel_options, add_shared_options, glance_method
from tacit.cli.stopping import exit_status
from tacit.cli.terminal import make_console, say
from tacit.core.amounts import duration
from tacit.core.errors import TacitError
from tacit.core.prices import Prices
from tacit.core.waiting import reminded
from tacit.engines.chat.client import DEFAULT_KEY_VARIABLE
from tacit.modules.players import open_player
from tacit.runs.files import write_json

SUMMARY_LINE = "Measure a run, a model, the expert, a reader or an endpoint on a fixed panel; a run repeats its own number."
PANEL_SETTINGS = ("split", "tasks", "repeats", "temperature", "top_p", "top_k", "max_steps")
PRINTED = "-"
"""what --json is without a file"""


def run(argv: Sequence[str]) -> int:
    parser = make_parser(glance_method(argv, "eval"))
    arguments, said = parser.parse(argv)
    _check(parser, arguments)
    ks, prices = _ks(arguments.k), _prices(arguments)
    meant = with_panel(said, arguments.panel, arguments.target)
    console, opened = make_console(), arguments.target or arguments.endpoint
    with reminded(partial(say, console), lambda spent: f"eval: loading {opened}, {duration(spent)}"):
        target = _open(arguments, meant)
    if arguments.tokens:
        check_tokens(target)
    sitting = Sitting(target, ks, prices, arguments.out, arguments.fresh, meant)
    if sitting.panel.difference():
        say(console, f"warning: {sitting.panel.difference()}", style="yellow")
    progress = EvalProgress(console, sitting.episodes, sitting.rules.max_steps, target.policy)
    try:
        measured = sitting.play(arguments.batch, progress, progress.begun)
    except KeyboardInterrupt as stop:
        kept = f" What was played is in {sitting.journal.path}; the same command goes on from there." if sitting.journal else ""
        print(f"\nstopped.{kept}", file=sys.stderr)
        return exit_status(stop)
    finally:
        progress.close()
    for note in sitting.journal.notes if sitting.journal else ():
        say(console, f"note: {note}")
    show(console, target, measured)
    if arguments.tokens:
        uses, picture = sitting.account(measured)
        show_tokens(console, uses)
        if picture is not None:
            print(f"drawn in {picture}")
    if (place := sitting.keep(measured)) is not None:
        print(f"written to {place}")
    if arguments.json == PRINTED:
        print(json.dumps(measured.result))
    elif arguments.json:
        place = Path(arguments.json).expanduser()
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, measured.result)
        print(f"written to {place}")
    return 0


def make_parser(method: str) -> Parser:
    parser = Parser(
        "eval",
        SUMMARY_LINE,
        usage="tacit eval TARGET [--world NAME] [settings] | --endpoint URL --model NAME --world NAME [settings]",
        epilog="For a run, every default is the run's own setting. An evaluation that was stopped goes on where it stopped.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="run directory or one of its checkpoints; skill modules; a model (tiny, a saved one, a hub id); `expert`; or "
        "`reader`, a rule that reads what a policy reads",
    )
    add_checkpoint_flag(parser)
    parser.add_argument(
        "--panel",
        metavar="NAME|FILE",
        help="the panel by name, as `tacit list panels` gives it (countdown/test/128), or a .json or .jsonl file of tasks",
    )
    parser.add_argument("--k", default="", metavar="K,…", help="k of pass@k and SC@k (default: the repeats, if several)")
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="episodes played side by side (default: 256)")
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="also count what ReAct-1step and ReAct-full, with and without a list of actions, would have read on the same "
        "episodes",
    )
    parser.add_argument("--price-prompt", type=float, metavar="PRICE", help="of a million prompt tokens, to say what it cost")
    parser.add_argument("--price-completion", type=float, metavar="PRICE", help="of a million completion tokens")
    parser.add_argument(
        "--json",
        nargs="?",
        const=PRINTED,
        metavar="FILE",
        help="write the result to this file; without one, print it as one JSON object on the last line",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory for the episodes and the result (default: evaluations/ of the run, or evaluations/TARGET here)",
    )
    parser.add_argument("--fresh", action="store_true", help="play every episode anew; what was played before is kept aside")
    add_panel_options(parser, PANEL_SETTINGS)
    _add_endpoint_flags(parser)
    add_shared_options(parser, method)
    return parser


def _add_endpoint_flags(parser: Parser) -> None:
    group = parser.add_argument_group("endpoint: a model served under an OpenAI-compatible address")
    group.add_argument("--endpoint", metavar="URL", help="its address, up to the version: http://localhost:8000/v1")
    group.add_argument("--model", metavar="NAME", help="which of its models")
    group.add_argument(
        "--key-variable",
        default=DEFAULT_KEY_VARIABLE,
        metavar="NAME",
        help=f"environment variable that holds the key (default: {DEFAULT_KEY_VARIABLE})",
    )
    group.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests under way at a time (default: 16)")
    group.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for one answer (default: 120)")


def _check(parser: Parser, arguments: Namespace) -> None:
    if not arguments.target and not arguments.endpoint:
        parser.error("the following arguments are required: TARGET (or --endpoint URL --model NAME)")
    if arguments.endpoint and arguments.target:
        raise TacitError(f"measure {arguments.target!r} or the endpoint {arguments.endpoint}, not both in one evaluation.")
    if arguments.model and not arguments.endpoint:
        raise TacitError(f"--model {arguments.model} names a model of an --endpoint; a model of your own is the TARGET itself.")
    check_at_least_one(arguments, "batch", "concurrency")
    if arguments.timeout <= 0:
        raise TacitError(f"--timeout {arguments.timeout:g} must be above 0.")
    if arguments.out and (arguments.out.suffix == ".json" or arguments.out.is_file()):
        raise TacitError(f"--out {arguments.out} must be a directory; --json FILE writes the result to a file of your own.")


def _open(arguments: Namespace, said: Said) -> Target:
    if not arguments.endpoint:
        return open_player(arguments.target, said, arguments.checkpoint, base=arguments.base_model, fallback=arguments.fallback)
    if arguments.checkpoint:
        raise TacitError(f"--checkpoint {arguments.checkpoint} is for runs; an endpoint serves what it serves.")
    key, concurrency, timeout = arguments.key_variable, arguments.concurrency, arguments.timeout
    return open_endpoint(Endpoint(arguments.endpoint, arguments.model or "", key, concurrency, timeout), said)


def _ks(text: str) -> tuple[int, ...]:
    ks = tuple(sorted(set(from_text(tuple[int, ...], text, "--k")))) if text else ()
    if any(k < 1 for k in ks):
        raise TacitError(f"--k {text}: each k must be at least 1.")
    return ks


def _prices(arguments: Namespace) -> Prices | None:
    said = (arguments.price_prompt, arguments.price_completion)
    if said == (None, None):
        return None
    if any(price is not None and price < 0 for price in said):
        raise TacitError("a price must not be negative.")
    return Prices(arguments.price_prompt or 0.0, arguments.price_completion or 0.0)
