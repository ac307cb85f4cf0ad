"""Pretrain a tiny base model on documents of our worlds: L = −E[log π(token | earlier tokens of the document)]."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import BASE_SIZES, pack_base
from tacit.pretraining.corpus import Corpus, iterate_batches, make_corpus, make_documents, sample_texts
from tacit.runs.directory import code_version
from tacit.runs.files import write_directory
from tacit.training.imitation import cosine
from tacit.worlds import get_environment


@dataclass(frozen=True)
class PretrainingSettings:
    steps: int = 6000  # optimizer steps
    rows: int = 512  # documents per step
    lr: float = 3e-3  # peak learning rate; warm-up then cosine to zero
    warmup: float = 0.03  # share of the steps spent warming up
    seed: int = 0


def pretrain(
    learn: Callable[[Sequence[np.ndarray], float], Any],
    corpus: Corpus,
    settings: PretrainingSettings,
    report: Callable[[int, Any], None],
) -> None:
    """`learn(documents, lr)` takes one optimizer step and returns its loss; `report(step, loss)` is called after each step."""
    for step, rows in enumerate(iterate_batches(corpus, settings.rows, settings.steps, settings.seed)):
        report(step + 1, learn(rows, settings.lr * cosine(step, settings.steps, settings.warmup)))


STRIDE = 8  # use every n-th question, since those of one episode are similar


def measure_reading(policy: Policy, worlds: Sequence[Environment], seed: int, each: int = 400) -> Mapping[str, float]:
    """`<world> questions` -> share of exact greedy answers, on episodes that are not in the corpus."""
    right: dict[str, list[bool]] = defaultdict(list)
    for world in worlds:
        all_made = (d for d in make_documents(world, each, derive(seed, "reading")) if d.kind == "questions")
        sampled = islice(all_made, 0, STRIDE * each, STRIDE)
        encoded = [(d, policy.encode_prompt(d.prompt)) for d in sampled]
        fitting = [(d, prompt) for d, prompt in encoded if len(prompt) + 40 < policy.context_limit]
        answers = policy.sample([Request(prompt) for _, prompt in fitting], Sampling(temperature=0.0, max_tokens=40))
        # `how` questions can have several right answers, so they are not scored.
        for (document, _), answer in zip(fitting, answers, strict=True):
            if not document.prompt.rpartition("\n")[2].startswith("how"):
                right[f"{world.name} questions"].append(answer.text == document.answer)
    return {name: sum(grades) / len(grades) for name, grades in right.items()}


EPISODES = {
    "alfworld": 40_000,
    "cooking": 8_000,
    "countdown": 8_000,
    "textcraft": 6_000,
    "sokoban": 6_000,
    "webshop": 6_000,
    "searchqa": 30_000,
}
"""random episodes per world in the corpus; up to 4 turns in Search QA and 24 in the others"""
REPORTS = 20  # loss reports per pretraining


def check_destination(destination: Path) -> None:
    """Raise unless the directory is new and can be created. Call it before minutes of work."""
    if destination.exists():
        raise TacitError(f"{destination} exists already; choose a new directory.")
    parent = next(path for path in destination.absolute().parents if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise TacitError(f"cannot create {destination}: {parent} is not a writable directory.")


def make_base(
    destination: Path,
    size: str,
    share: float,
    processes: int,
    settings: PretrainingSettings,
    engine: EngineSettings,
    say: Callable[[str], None],
) -> dict[str, float]:
    """Make a base model of `size` (BASE_SIZES): train a tokenizer, generate a `share` of the corpus, pretrain, and save it in
    `destination`. Returns the scores of `measure_reading`."""
    from tacit.engines.local.policy import load_policy
    from tacit.engines.local.update import PretrainingTrainer
    from tacit.engines.models.tiny import tiny_checkpoint

    began = time.monotonic()
    episodes = {name: max(1, round(count * share)) for name, count in EPISODES.items()}
    counts = ", ".join(f"{count:,} of {name}" for name, count in episodes.items())
    say(f"making a tokenizer and a corpus from random episodes: {counts}")
    blank = tiny_checkpoint(sample_texts(episodes, settings.seed), BASE_SIZES[size], settings.seed)
    policy = load_policy(str(blank), engine, settings.seed)
    end, limit = policy.engine.codec.end, policy.context_limit
    corpus = make_corpus(episodes, blank / "tokenizer.json", end, limit, settings.seed, processes)
    say(f"corpus: {len(corpus):,} documents, {len(corpus.tokens):,} tokens, {time.monotonic() - began:.0f} s")

    def report(step: int, loss: Any) -> None:
        if step % max(1, settings.steps // REPORTS) == 0:
            say(f"step {step}: loss {float(loss):.3f}, {time.monotonic() - began:.0f} s")

    pretrain(PretrainingTrainer(policy.engine.model.hf, policy.engine.codec.pad).step, corpus, settings, report)
    policy.engine.weights_changed(policy.name)
    say("measuring reading: questions about new episodes")
    reads = dict(measure_reading(policy, [get_environment(name) for name in episodes], settings.seed))
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
        "reads": {name: round(right, 4) for name, right in reads.items()},
        "seconds": round(time.monotonic() - began),
    }
    with TemporaryDirectory() as place:
        policy.save(Path(place) / "trained", optimizer=False)
        checkpoint = next(Path(place).glob("**/config.json")).parent
        write_directory(destination, lambda path: pack_base(checkpoint, path, about))
    return reads
