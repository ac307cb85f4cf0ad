"""`tacit eval`: play a fixed panel with a run's checkpoint, a model, the expert or an endpoint, and say how it went."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.assembly.flags import Parser, options_of
from tacit.assembly.recipe import DEFAULT_METHOD, TOP_OPTIONS, method_name, method_options, section_options
from tacit.assembly.values import from_text
from tacit.cli.evaluation.panel_choice import PANEL, PICKS, open_panel, panel_settings, run_of
from tacit.cli.evaluation.results import PRINTED, directory_for, keep, own_evaluation, result_name, result_of
from tacit.cli.modules.flags import add_module_flags
from tacit.core.errors import TacitError
from tacit.runs.directory import code_version, read_settings
from tacit.training.settings import EvaluationSettings, TrainSettings

if TYPE_CHECKING:
    from tacit.assembly.players import Target
    from tacit.evaluation.scores import Prices

SUMMARY_LINE = "Measure a run, a model, the expert or an endpoint on a fixed panel; a run's settings make it repeat its number."
PANEL_SETTINGS = ("split", "tasks", "repeats", "temperature", "top_p", "top_k", "max_steps")
RUN_SETTINGS = ("seed", "max_tokens", "workers", "world_timeout_s")


def run(argv: Sequence[str]) -> int:
    parser = make_parser(glance_method(argv, "eval"))
    arguments, said = parser.parse(argv)
    _check(parser, arguments)
    if arguments.panel:
        said = {**said, **panel_settings(arguments.panel, arguments.target or "", dict(said))}
    elif any(place in said for place in PICKS):
        said = {**said, PANEL: ""}
    from tacit.cli.evaluation.tokens_view import check_tokens, report_tokens
    from tacit.cli.evaluation.view import Progress, show
    from tacit.cli.terminal import make_console, say
    from tacit.evaluation.behaviour import behaviour
    from tacit.evaluation.evaluate import play_panel
    from tacit.evaluation.journal import Journal, Measurement
    from tacit.evaluation.scores import score_panel
    from tacit.training.practice import make_worlds

    ks, prices = _ks(arguments.k), _prices(arguments)
    target = _open(arguments, said)
    if arguments.tokens:
        check_tokens(target)
    panel = open_panel(target, said)
    rules = target.rules
    if ks and max(ks) > rules.repeats:
        raise TacitError(
            f"--k {max(ks)} needs {max(ks)} episodes per task, and --repeats is {rules.repeats}: add --repeats {max(ks)}."
        )
    measured = Measurement.of(panel, rules, target.label, target.fingerprint, target.reads, target.numbers, code_version())
    console, directory = make_console(), arguments.out or directory_for(target)
    journal = Journal(directory, measured) if directory else None
    if journal and arguments.fresh:
        journal.start_afresh()
    if panel.difference():
        say(console, f"warning: {panel.difference()}", style="yellow")
    worlds, progress = make_worlds(target.world, target.recipe.train), Progress(console, len(panel.tasks) * rules.repeats)
    try:
        played = play_panel(
            panel, rules, worlds, target.route, batch=arguments.batch, journal=journal, progress=progress, settle=target.settle
        )
    except KeyboardInterrupt:
        kept = f" What was played is in {journal.path}; the same command goes on from there." if journal else ""
        print(f"\nstopped.{kept}", file=sys.stderr)
        return 130
    finally:
        progress.close()
        worlds.close()
    score = score_panel(panel, played, rules, ks, prices)
    how = behaviour(played, target.world.alphabet, target.world.failure, target.world.place)
    earlier = own_evaluation(target, score)
    result = {
        **result_of(target, score, earlier),
        "fingerprint": measured.fingerprint,
        "settings_hash": measured.settings_hash,
        "code": measured.code,
        "max_steps": measured.max_steps,
        "reads": measured.reads,
        "numbers": measured.numbers,
        "prices": {"prompt": prices.prompt, "completion": prices.completion} if prices else None,
        "panel_differs": panel.difference(),
        "behaviour": how.to_json(),
        "episodes_file": journal.path.name if journal else None,
    }
    for note in journal.notes if journal else ():
        say(console, f"note: {note}")
    show(console, target, score, how, earlier, played)
    if arguments.tokens:
        picture = directory / result_name(result).replace(".json", ".tokens.png") if directory else None
        result["tokens"] = report_tokens(console, target, played, picture)
    keep(arguments, directory, result)
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
        help="run directory or one of its checkpoints; skill modules; a model (tiny, a saved one, a hub id); or `expert`",
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
        "--tokens", action="store_true", help="also count what ReAct-1step and ReAct-full would have read on the same episodes"
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
    parser.add_options(
        "panel and sampling",
        [*options_of(EvaluationSettings, ("evaluation",), only=PANEL_SETTINGS), *options_of(TrainSettings, only=("families",))],
    )
    _add_endpoint_flags(parser)
    add_shared_options(parser, method)
    return parser


def _add_endpoint_flags(parser: Parser) -> None:
    from tacit.engines.chat.client import DEFAULT_KEY_VARIABLE

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


def add_checkpoint_flag(parser: Parser) -> None:
    parser.add_argument(
        "--checkpoint",
        default="",
        metavar="NAME",
        help="of a run: newest, best, sft, rl, a name such as rl-000020, or untrained (default: newest)",
    )


def add_shared_options(parser: Parser, method: str) -> None:
    """What eval and play have in common: the world, what the agent reads, and the engine."""
    parser.add_options("world and method", [o for o in TOP_OPTIONS if o.name in ("world", "method")])
    parser.add_options(
        f"method {method}",
        [o for o in method_options(method) if o.place[0] == "method"],
        "Only what the agent reads matters here.",
    )
    parser.add_options("episodes", options_of(TrainSettings, only=RUN_SETTINGS))
    add_module_flags(parser)
    for section in ("engine", "tiny"):
        parser.add_options(section, section_options()[section])


def glance_method(argv: Sequence[str], command: str) -> str:
    """The method decides which flags there are: the one named, else the run's own."""
    glance = Parser(command, "", add_help=False)
    glance.add_argument("--method")
    seen, rest = glance.parse_known_args(argv)
    if seen.method:
        return seen.method
    run = next((run for word in rest if not word.startswith("-") and (run := run_of(word))), None)
    return method_name(read_settings(run)) if run else DEFAULT_METHOD


def _check(parser: Parser, arguments: Namespace) -> None:
    if not arguments.target and not arguments.endpoint:
        parser.error("the following arguments are required: TARGET (or --endpoint URL --model NAME)")
    if arguments.endpoint and arguments.target:
        raise TacitError(f"measure {arguments.target!r} or the endpoint {arguments.endpoint}, not both in one evaluation.")
    if arguments.model and not arguments.endpoint:
        raise TacitError(f"--model {arguments.model} names a model of an --endpoint; a model of your own is the TARGET itself.")
    for name in ("batch", "concurrency"):
        if getattr(arguments, name) < 1:
            raise TacitError(f"--{name} {getattr(arguments, name)} must be at least 1.")
    if arguments.timeout <= 0:
        raise TacitError(f"--timeout {arguments.timeout:g} must be above 0.")
    if arguments.out and (arguments.out.suffix == ".json" or arguments.out.is_file()):
        raise TacitError(f"--out {arguments.out} must be a directory; --json FILE writes the result to a file of your own.")


def _open(arguments: Namespace, said: dict[tuple[str, ...], Any]) -> Target:
    from tacit.assembly.players import Endpoint, open_endpoint
    from tacit.modules.players import open_player

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
    from tacit.evaluation.scores import Prices

    said = (arguments.price_prompt, arguments.price_completion)
    if said == (None, None):
        return None
    if any(price is not None and price < 0 for price in said):
        raise TacitError("a price must not be negative.")
    return Prices(arguments.price_prompt or 0.0, arguments.price_completion or 0.0)
