"""The `tacit` command. Each subcommand is a module, imported on use; torch is imported when work starts."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from errno import EACCES, ENOMEM
from functools import partial
from pathlib import Path

import tacit
from tacit.cli.terminal import Command, dispatch, exit_status, signals_as_interrupts
from tacit.core.errors import TacitError, first_line
from tacit.core.trust import add_flag, trust_command_line
from tacit.runs.files import REFUSALS, DiskError

COMMANDS = {
    "train": ("tacit.cli.train", "train a policy in a world with a method"),
    "eval": ("tacit.cli.eval", "evaluate a run, a model or the expert on a fixed panel"),
    "compare": ("tacit.cli.compare", "compare methods over worlds and seeds from one settings file"),
    "play": ("tacit.cli.play", "watch a policy or the expert play, or play yourself"),
    "modules": ("tacit.cli.modules", "train, export, share and verify skill modules"),
    "serve": ("tacit.cli.modules:serve_modules", "serve skill modules over HTTP (sessions, chat completions) or MCP"),
    "calibrate": ("tacit.cli.calibrate", "choose the layer and radius of step-level credit for a model"),
    "inspect": ("tacit.cli.inspect", "inspect a run: dictionary, clusters, credit, notes, skills"),
    "bank": ("tacit.cli.bank", "list, export and edit the experience bank of a run"),
    "watch": ("tacit.cli.report:watch", "serve a live report of runs while they train"),
    "report": ("tacit.cli.report", "write the HTML report of a run or a comparison"),
    "runs": ("tacit.cli.train:pack_or_unpack", "pack a run to resume it on another machine"),
    "plan": ("tacit.cli.plan", "estimate memory and time of a run on given GPUs"),
    "list": ("tacit.cli.listing", "list worlds, methods, engines, models, panels and recipes"),
    "prepare": ("tacit.cli.prepare", "make a model without a model hub, or tasks for the code world"),
}

EXAMPLES = """ To start:
  tacit train --config quickstart
  tacit train --world countdown --model tiny --sft.steps 300 --iterations 20 --lr 3e-4
  tacit play --world countdown --policy expert"""

MISTAKE = 2
NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't allocate memory", "can't start new thread", "bad_alloc")
"""in messages of the dynamic loader, torch and Python"""


def main(argv: Sequence[str] | None = None, again: str = "") -> int:
    """Run one command and return its exit status. `again`: the command to repeat after a disk error, if not this one."""
    words = list(sys.argv[1:] if argv is None else argv)
    with trust_command_line(words):
        return _run_command(words, again)


def _run_command(words: list[str], again: str) -> int:
    try:
        with signals_as_interrupts():
            return _dispatch_command(words)
    except TacitError as error:
        if os.environ.get("TACIT_DEBUG"):
            raise
        named = error.naming(again or _resume_command(words, error.path)) if isinstance(error, DiskError) else error
        _print_error(add_flag(str(named)))
        return MISTAKE
    except KeyboardInterrupt as stop:
        print("\nstopped.", file=sys.stderr)
        return exit_status(stop)
    except BrokenPipeError:
        # `tacit list | head`: the reader is gone. Redirect stdout, or Python complains again when it closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, ImportError, RuntimeError, OSError) as error:
        if os.environ.get("TACIT_DEBUG") or not (reason := _explain_limit(error)):
            raise
        _print_error(reason)
        return MISTAKE


def _dispatch_command(words: list[str]) -> int:
    if words[:1] in (["-V"], ["--version"]):
        print(f"tacit {tacit.__version__}")
        return 0
    commands: dict[str, Command] = {name: (partial(_import_and_run, place), text) for name, (place, text) in COMMANDS.items()}
    try:
        return dispatch([] if words[:1] == ["help"] else words, "tacit", str(tacit.__doc__), commands, more=EXAMPLES)
    except SystemExit as ended:  # argparse after --help
        return int(ended.code or 0)


def _import_and_run(place: str, argv: Sequence[str]) -> int:
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function or "run")(argv)


def _resume_command(words: list[str], path: Path) -> str:
    """The command that continues after an error: `--resume` for a started run, else the same command."""
    from tacit.runs.directory import SETTINGS, resume_command

    run = next((place for place in (path, *path.parents) if (place / SETTINGS).exists()), None)
    return resume_command(run) if run and words[0] == "train" else shlex.join(["tacit", *words])


def _explain_limit(error: BaseException) -> str:
    """One line for an error caused by a limit of this machine (memory, threads, disk); "" for any other error."""
    if isinstance(error, OSError) and error.errno in REFUSALS and error.errno != EACCES:
        reason, remedy = REFUSALS[error.errno]
        return f"cannot write {error.filename or 'a file'}: {reason}; {remedy}, then run the command again."
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY) or getattr(error, "errno", 0) == ENOMEM:
        return f"out of memory ({first_line(error)}). Free some, raise the limit (`ulimit -v`), or choose smaller settings."
    return ""


def _print_error(message: str) -> None:
    red = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    message = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in message)  # it may quote an untrusted file
    print(f"\033[31merror:\033[0m {message}" if red else f"error: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
