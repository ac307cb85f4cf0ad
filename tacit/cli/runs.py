"""`tacit runs`: pack a run, and unpack it on another machine to resume it there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.cli.terminal import Command, dispatch, make_console, say
from tacit.config.flags import Parser
from tacit.config.portable import pack_run, unpack_run
from tacit.core.progress import pluralize
from tacit.core.trust import flag_for_later
from tacit.runs.directory import read_settings, resume_command


def run(argv: Sequence[str]) -> int:
    commands: dict[str, Command] = {
        "pack": (pack, "write settings, metrics and one checkpoint in parts of at most 16 MB"),
        "unpack": (unpack, "restore the run directory; `tacit train --resume DIR` does this too"),
    }
    return dispatch(argv, "runs", "Pack a run into a few files, to resume it on another machine.", commands)


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
