"""QueryQueue and retrieval under concurrency: answers match single searches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tacit.companions.experience.bank import Bank, Origin
from tacit.companions.experience.manager import QueryQueue
from tacit.companions.experience.retrieval import CachedEmbedding, Diversity, NgramEmbedding, Query, retrieve
from tacit.core.errors import TacitError

EMBED = NgramEmbedding(3, 64)


def bank_of(count: int) -> Bank:
    bank = Bank(None, EMBED.name, EMBED.dimensions)
    texts = [f"thing {i} lies in place {i * 7 % 13}" for i in range(count)]
    vectors = EMBED(texts)
    bank.replace((), [(t, v, Origin(), None) for t, v in zip(texts, vectors, strict=True)], "")
    return bank


@contextmanager
def open_queue(*arguments, **named) -> Iterator[QueryQueue]:
    query_queue = QueryQueue(*arguments, **named)
    try:
        yield query_queue
    finally:
        query_queue.abandon()


def in_threads(count: int, work) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("workers", [1, 4])
def test_batched_answers_match_single_searches(workers):
    bank, remembered = bank_of(60), CachedEmbedding(EMBED, max_texts=20)
    queries = [f"where is thing {i % 45}" for i in range(240)]
    alone = {q: retrieve(bank, EMBED, [Query(q)], 1, Diversity(), count=False)[0] for q in set(queries)}
    answers: dict[int, object] = {}
    with open_queue(
        lambda batch: retrieve(bank, remembered, list(map(Query, batch)), 1, Diversity(), count=False), 16, 0.005, workers
    ) as query_queue:

        def ask(i: int) -> None:
            for n in range(i, len(queries), 24):
                answers[n] = query_queue.ask(queries[n]).result(timeout=30)

        in_threads(24, ask)
    assert [answers[n] for n in range(len(queries))] == [alone[q] for q in queries]


def test_batch_is_sent_when_full_or_after_wait_time():
    searched: list[int] = []

    def search(batch):
        searched.append(len(batch))
        return batch

    with open_queue(search, size=4, wait_s=60.0, workers=1) as query_queue:
        futures = [query_queue.ask(str(i)) for i in range(8)]
        assert [f.result(timeout=30) for f in futures] == [str(i) for i in range(8)] and searched == [4, 4]
    with open_queue(search, size=1000, wait_s=0.01, workers=1) as query_queue:
        began = time.monotonic()
        assert query_queue.ask("alone").result(timeout=30) == "alone" and time.monotonic() - began < 20


def test_abandon_does_not_wait_for_a_stuck_search():
    never, searching = threading.Event(), threading.Event()
    query_queue = QueryQueue(
        lambda batch: [searching.set() or never.wait(60) or q for q in batch], size=1, wait_s=0.0, workers=1
    )
    stuck, waiting = query_queue.ask("stuck"), query_queue.ask("waiting")
    searching.wait(30)
    began = time.monotonic()
    query_queue.abandon(timeout_s=0.2)
    assert time.monotonic() - began < 20 and not stuck.done() and waiting.cancelled()
    with pytest.raises(TacitError, match="closed"):
        query_queue.ask("too late")
    never.set()
    assert stuck.result(timeout=30) is True


def test_search_error_reaches_only_its_own_callers():
    def search(batch):
        if "bad" in batch:
            raise ValueError("no such thing")
        return batch

    with open_queue(search, size=1, wait_s=0.0, workers=2) as query_queue:
        bad, good = query_queue.ask("bad"), query_queue.ask("good")
        assert good.result(timeout=30) == "good"
        with pytest.raises(ValueError, match="no such thing"):
            bad.result(timeout=30)
        assert query_queue.ask("later").result(timeout=30) == "later", "and the query_queue goes on"


def test_embedding_cache_evicts_oldest_text():
    embedded_texts: list[str] = []
    embed = CachedEmbedding(lambda texts: embedded_texts.extend(texts) or EMBED(texts), max_texts=3)
    for text in "abcd":
        embed([text])
    embed(["b", "c", "d"])
    assert embedded_texts == [*"abcd"] and len(embed(["a"])) == 1 and embedded_texts == [*"abcda"]


@pytest.mark.slow
def test_retrieval_tolerates_concurrent_replacement():
    """Entries are replaced while others search. Before, a search failed on an entry that had just been removed."""
    bank, stop, wrong = bank_of(40), threading.Event(), []
    embed = CachedEmbedding(EMBED, max_texts=3)

    def read(i: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            try:
                retrieve(bank, embed, [Query(f"thing {(n + k) % 40}") for k in range(6)], n, Diversity(), count=bool(i % 2))
            except Exception as error:
                wrong.append(error)
                return

    readers = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for reader in readers:
        reader.start()
    rng = np.random.default_rng(0)
    until = time.monotonic() + 2.0
    while time.monotonic() < until and not wrong:
        old = [int(n) for n in rng.choice(list(bank.entries), 20, replace=False)]
        texts = [f"thing {n} lies elsewhere" for n in old]
        bank.replace(old, [(t, v, Origin(), None) for t, v in zip(texts, EMBED(texts), strict=True)], "moved")
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
