"""The corpus as tokens: made in parallel, kept as one long array of small integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tacit.core.seeds import derive
from tacit.environments import get_environment
from tacit.pretraining.corpus import documents

EPISODES_PER_SHARD = 500


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as tokens, end token included. Row i is `tokens[starts[i]:starts[i + 1]]`."""

    tokens: np.ndarray
    starts: np.ndarray
    documents: Mapping[str, int]
    """how many, by world and kind"""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, i: int) -> np.ndarray:
        return self.tokens[self.starts[i] : self.starts[i + 1]].astype(np.int64)


def sample_texts(worlds: Iterable[str], seed: int, each: int = 4000) -> list[str]:
    """Documents to train the tokenizer on, and every world's own example texts."""
    texts: list[str] = []
    for name in worlds:
        world = get_environment(name)
        texts += [f"{d.prompt} {d.answer}" for d in islice(documents(world, each, derive(seed, "tokenizer")), each)]
        texts += list(world.example_texts(0))[:each] if world.example_texts else []
    return texts


def make_corpus(worlds: Mapping[str, int], tokenizer: Path, end: int, limit: int, seed: int, processes: int) -> Corpus:
    """`worlds` says how many episodes of each; documents over `limit` tokens are left out. The same for any `processes`."""
    plans = [
        (name, min(EPISODES_PER_SHARD, episodes - first), derive(seed, "shard", first), tokenizer, end, limit)
        for name, episodes in worlds.items()
        for first in range(0, episodes, EPISODES_PER_SHARD)
    ]
    if processes > 1:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            shards = list(pool.map(_shard, *zip(*plans, strict=True)))
    else:
        shards = [_shard(*plan) for plan in plans]
    lengths = np.concatenate([lengths for _, lengths, _ in shards])
    counts = Counter[str]()
    for _, _, counted in shards:
        counts.update(counted)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Corpus(np.concatenate([tokens for tokens, _, _ in shards]), starts, dict(sorted(counts.items())))


def batches(corpus: Corpus, rows: int, steps: int, seed: int, first: int = 0) -> Iterator[Sequence[np.ndarray]]:
    """`rows` documents a step, each once before any comes again."""
    per_pass = max(1, len(corpus) // rows)
    order: np.ndarray | None = None
    for step in range(first, steps):
        turn, place = divmod(step, per_pass)
        if order is None or place == 0:
            order = np.random.default_rng(derive(seed, "order", turn)).permutation(len(corpus))
        yield [corpus.row(i) for i in order[place * rows : (place + 1) * rows]]


def _shard(
    name: str, episodes: int, seed: int, tokenizer: Path, end: int, limit: int
) -> tuple[np.ndarray, np.ndarray, Counter[str]]:
    from tokenizers import Tokenizer

    bpe = Tokenizer.from_file(str(tokenizer))
    made = list(documents(get_environment(name), episodes, seed))
    prompts = bpe.encode_batch_fast([d.prompt for d in made], add_special_tokens=False)
    answers = bpe.encode_batch_fast([d.answer for d in made], add_special_tokens=False)
    rows: list[list[int]] = []
    counts = Counter[str]()
    for document, prompt, answer in zip(made, prompts, answers, strict=True):
        row = [*prompt.ids, *answer.ids, end]
        if len(row) <= limit:
            rows.append(row)
            counts[f"{name} {document.kind}"] += 1
    flat = np.fromiter((token for row in rows for token in row), np.uint16)
    return flat, np.array([len(row) for row in rows], np.int64), counts
