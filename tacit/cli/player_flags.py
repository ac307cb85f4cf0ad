"""Flags of the commands that open a player: who it is, what it reads, how it is sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tacit.assembly.checks import READER
from tacit.assembly.flags import Parser, options_of
from tacit.assembly.options import TOP_OPTIONS, method_options, section_options
from tacit.assembly.panel_choice import run_of
from tacit.assembly.players import READS
from tacit.assembly.recipe import DEFAULT_METHOD, method_name
from tacit.runs.directory import read_settings
from tacit.training.settings import EvaluationSettings, TrainSettings

RUN_SETTINGS = ("seed", "max_tokens", "workers", "workers_at", "world_timeout_s")


def add_checkpoint_flag(parser: Parser) -> None:
    parser.add_argument(
        "--checkpoint",
        default="",
        metavar="NAME",
        help="of a run: newest, best, sft, rl, a name such as rl-000020, or untrained (default: newest)",
    )


def add_panel_options(parser: Parser, settings: Iterable[str]) -> None:
    families = options_of(TrainSettings, only=("families",))
    parser.add_options("panel and sampling", [*options_of(EvaluationSettings, ("evaluation",), only=settings), *families])


def add_shared_options(parser: Parser, method: str) -> None:
    """What such commands have in common: the world, what the agent reads, and the engine."""
    parser.add_options("world and method", [o for o in TOP_OPTIONS if o.name in ("world", "method")])
    parser.add_options(
        f"method {method}",
        [o for o in method_options(method) if o.place[0] == "method"],
        "Only what the agent reads matters here.",
    )
    parser.add_options("episodes", options_of(TrainSettings, only=RUN_SETTINGS))
    group = parser.add_argument_group("skill modules")
    group.add_argument("--base-model", metavar="MODEL", help="where their base lies, if not where it was in training")
    group.add_argument("--fallback", metavar="SKILL", help="the module for families that none is for (default: refuse them)")
    for section in ("engine", "tiny"):
        parser.add_options(section, section_options()[section])


def glance_method(argv: Sequence[str], command: str) -> str:
    """The method decides which flags there are: the one named, else the run's own."""
    glance = Parser(command, "", add_help=False)
    glance.add_argument("--method")
    seen, rest = glance.parse_known_args(argv)
    if seen.method:
        return seen.method
    if READER in rest:
        return READS["name"]
    run = next((run for word in rest if not word.startswith("-") and (run := run_of(word))), None)
    return method_name(read_settings(run)) if run else DEFAULT_METHOD
