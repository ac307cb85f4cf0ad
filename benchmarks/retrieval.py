"""Speed of the experience bank: a burst of queries as at the start of an iteration, a single query, and writes.

    python benchmarks/retrieval.py [--json] [--entries 20000] [--dimensions 384] [--queries 384] [--repeats 20]

burst     384 episodes query at once through the query queue (the paper's B, t_max and W, and others): latency of a query, p50
          and p99 over all repeats, and time until the last answer. The four queries of a group are equal. Embeddings are
          precomputed and not timed. The paper: up to about 1 s. Goal: p99 under 150 ms.
together  the same queries as one list in the calling thread, as in deterministic runs.
single    one query; goal: under 5 ms.
writing   entries per second on disk, each acknowledged: added to a bank with room, added to a full one, updated, and merged
          (five into two) in the middle of the bank.

Times are wall time; CPU time, where given, covers all threads. --threads bounds linear algebra (default: 1; the query queue has
its own workers).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

GROUP = 4
LIMIT_BURST_MS, LIMIT_SINGLE_MS = 150.0, 5.0
QUEUE_SETTINGS = {"B 16, 1 ms, W 4": (16, 0.001, 4), "B 32, 5 ms, W 4": (32, 0.005, 4), "B 128, 5 ms, W 2": (128, 0.005, 2)}
"""settings of the paper, of its code, and for two cores"""


def percentiles(values_s: Sequence[float]) -> dict[str, float]:
    import numpy as np

    p50, p99 = 1e3 * np.percentile(values_s, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "most_ms": 1e3 * max(values_s)}


def cpu_ms(work: Callable[[], object], repeats: int) -> float:
    """CPU milliseconds per call, over all threads of this process."""
    began = time.process_time()
    for _ in range(repeats):
        work()
    return 1e3 * (time.process_time() - began) / repeats


def make_bank(path: Path | None, entries: int, dimensions: int):
    import numpy as np

    from tacit.companions.experience.bank import Bank, Origin

    bank, rng = Bank(path, "noise", dimensions, entries), np.random.default_rng(0)
    vectors = rng.normal(size=(entries, dimensions)).astype(np.float32)
    bank.replace((), [(f"entry {i}", vector, Origin(), None) for i, vector in enumerate(vectors)], "")
    return bank


class PrecomputedEmbedding:
    """An embedding with precomputed vectors."""

    name = "noise"

    def __init__(self, texts: Sequence[str], dimensions: int) -> None:
        import numpy as np

        rng = np.random.default_rng(1)
        self.dimensions = dimensions
        self._known = {text: rng.normal(size=dimensions).astype(np.float32) for text in dict.fromkeys(texts)}

    def __call__(self, texts: Sequence[str]):
        import numpy as np

        return np.stack([self._known[text] for text in texts])


def burst(bank, embedding, queries: Sequence[object], settings: tuple[int, float, int], repeats: int) -> dict[str, float]:
    from tacit.companions.experience.manager import QueryQueue
    from tacit.companions.experience.retrieval import Diversity, retrieve

    began = time.process_time()
    latencies: list[float] = []
    totals: list[float] = []
    for step in range(repeats):
        queue = QueryQueue(lambda queries, step=step: retrieve(bank, embedding, queries, step, Diversity()), *settings)
        with closing(queue):
            answered_at = [0.0] * len(queries)
            submitted = []
            futures = []
            for i, query in enumerate(queries):
                submitted.append(time.perf_counter())
                future = queue.ask(query)
                future.add_done_callback(
                    lambda _, i=i, answered_at=answered_at: answered_at.__setitem__(i, time.perf_counter())
                )
                futures.append(future)
            assert all(future.result() is not None for future in futures)
        latencies += [end - begin for begin, end in zip(submitted, answered_at, strict=True)]
        totals.append(max(answered_at) - submitted[0])
    spent = 1e3 * (time.process_time() - began) / repeats
    return percentiles(latencies) | {"all_answered_ms": 1e3 * sorted(totals)[len(totals) // 2], "cpu_ms": spent}


def timed(work: Callable[[int], object], repeats: int) -> list[float]:
    spent = []
    for i in range(repeats):
        began = time.perf_counter()
        work(i)
        spent.append(time.perf_counter() - began)
    return spent


def writing(entries: int, dimensions: int, writes: int = 100) -> dict[str, float]:
    """Entries per second of each kind of write."""
    import numpy as np

    from tacit.companions.experience.bank import Origin

    rng = np.random.default_rng(2)

    def fresh(i: int):
        return f"written {i}", rng.normal(size=dimensions).astype(np.float32), Origin(), None

    rates = {}
    with tempfile.TemporaryDirectory() as place:
        bank = make_bank(Path(place) / "bank.sqlite", entries, dimensions)
        rates["added_when_full"] = writes / sum(timed(lambda i: bank.add(*fresh(i)), writes))
        bank.capacity = 2 * entries
        rates["added"] = writes / sum(timed(lambda i: bank.add(*fresh(i)), writes))
        ids = list(bank.entries)[entries // 2 :]
        rates["updated"] = writes / sum(timed(lambda i: bank.replace([ids[i]], [fresh(i)], "updated"), writes))
        ids = list(bank.entries)[entries // 2 :]
        merges = writes // 5
        merge = lambda i: bank.replace(ids[5 * i : 5 * i + 5], [fresh(i), fresh(-i)], "merged")  # noqa: E731
        rates["merged"] = 5 * merges / sum(timed(merge, merges))
        rates["counted"] = writes / sum(timed(lambda i: bank.record("guided", ids[-1:], i, "task", True), writes))
        bank.close()
    return rates


def limit_threads(threads: int) -> None:
    """Restart with this many threads: libraries read the thread count from the environment when they are loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    if any(os.environ.get(name) != str(threads) for name in names):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **dict.fromkeys(names, str(threads))})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("entries", 20_000), ("dimensions", 384), ("queries", 384), ("repeats", 20), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default:,}")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    limit_threads(args.threads)
    from tacit.companions.experience.retrieval import Diversity, Query, retrieve

    queries = [Query(f"task {i // GROUP}") for i in range(args.queries)]
    bank = make_bank(None, args.entries, args.dimensions)
    embedding = PrecomputedEmbedding([query.text for query in queries], args.dimensions)
    bursts = {name: burst(bank, embedding, queries, settings, args.repeats) for name, settings in QUEUE_SETTINGS.items()}
    together = percentiles(timed(lambda i: retrieve(bank, embedding, queries, i, Diversity()), args.repeats))
    together["cpu_ms"] = cpu_ms(lambda: retrieve(bank, embedding, queries, 0, Diversity()), args.repeats)
    one = [[query] for query in queries]
    single = percentiles(timed(lambda i: retrieve(bank, embedding, one[i % len(one)], i, Diversity()), 10 * args.repeats))
    single["cpu_ms"] = cpu_ms(lambda: retrieve(bank, embedding, one[0], 0, Diversity()), 10 * args.repeats)
    written = writing(args.entries, args.dimensions)
    load = os.getloadavg()[0]
    print(f"{args.entries:,} entries of {args.dimensions} dimensions, {os.cpu_count()} cores, load {load:.1f}")
    for name, times in bursts.items():
        ended = f"all answered after {times['all_answered_ms']:.1f} ms, CPU {times['cpu_ms']:.1f} ms"
        print(f"  burst of {args.queries}, {name:<17}", end=" ")
        print(f"p50 {times['p50_ms']:6.1f} ms  p99 {times['p99_ms']:6.1f} ms  {ended}")
    for name, times in (("the same as one list", together), ("a single query", single)):
        print(f"  {name:<31} p50 {times['p50_ms']:6.1f} ms  p99 {times['p99_ms']:6.1f} ms  CPU {times['cpu_ms']:.1f} ms")
    print(f"  goals: burst p99 {LIMIT_BURST_MS:.0f} ms, single {LIMIT_SINGLE_MS:.0f} ms")
    print("  entries a second: " + ", ".join(f"{name.replace('_', ' ')} {rate:,.0f}" for name, rate in written.items()))
    if args.json:
        limits = {"burst_p99_ms": LIMIT_BURST_MS, "single_ms": LIMIT_SINGLE_MS}
        print(
            json.dumps(
                {"burst": bursts, "together": together, "single": single, "writing": written, "load": load, "limits": limits}
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
