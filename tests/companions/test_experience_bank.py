"""The experience bank: exact search, durable writes, consistent reads, and recovery after a kill."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import bank_writer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turns import TurnLock, Turns

import tacit.companions.experience as package
from tacit.companions.experience.bank import BY_HAND, MAX_ENTRY_CHARS, Bank, Call, Origin, normalize
from tacit.companions.experience.files import read_bank
from tacit.companions.experience.retrieval import CachedEmbedding, Diversity, NgramEmbedding, Query, retrieve, score
from tacit.core.errors import TacitError

EMBED = NgramEmbedding()
FILES = [Path(package.__file__).with_name(f"{name}.py") for name in ("bank", "retrieval")]


def ids_of(snapshot) -> tuple[int, ...]:
    return tuple(entry.id for entry in snapshot.entries)


def nearest(bank, vectors, count) -> list[list[int]]:
    return [[entry.id for entry in ranked] for ranked in bank.snapshot.nearest(vectors, count)]


def bank_of(path=None, texts=(), capacity=100) -> Bank:
    bank = Bank(path, EMBED.name, EMBED.dimensions, capacity)
    for text in texts:
        bank.add(text, EMBED([text])[0], Origin(task=text))
    return bank


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_nearest_matches_exact_cosine_search(count, most, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 6)).astype(np.float32)
    bank = Bank(None, "numbers", 6)
    for i, vector in enumerate(vectors):
        bank.add(f"entry {i}", vector, Origin())
    query = rng.normal(size=6).astype(np.float32)
    by_hand = sorted(range(count), key=lambda i: -float(normalize(vectors[i]) @ normalize(query)))[:most]
    assert nearest(bank, query[None], most) == [[i + 1 for i in by_hand]]


def test_batched_queries_match_single_queries():
    """A hundred entries at ten distinct vectors, so there are ties. Ties go to older entries for any number of queries."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(10, 64)).astype(np.float32)
    bank = Bank(None, "numbers", 64)
    bank.replace((), [(f"entry {i}", places[i % 10], Origin(), None) for i in range(100)], "")
    queries = np.concatenate([places[:1] + places[1:], rng.normal(size=(200, 64)).astype(np.float32)])
    together = nearest(bank, queries, 16)
    assert together == [nearest(bank, query[None], 16)[0] for query in queries]
    assert nearest(bank, places[:1], 12)[0][:10] == list(range(1, 101, 10)), "all of the nearest place, by age"


def test_reopened_bank_has_entries_calls_and_events(tmp_path):
    call = Call(np.array([1, 2, 3]), np.array([4, 5]), np.array([-0.5, -0.25], np.float32), version=7)
    bank = bank_of(tmp_path / "bank.sqlite", ["red lever", "blue door"])
    entry = bank.add("green key", EMBED(["green key"])[0], Origin("w", "f", "t", 3, True, 2), call)
    bank.record("retrieved", [entry.id], 4)
    bank.record("guided", [entry.id, 1], 4, "t", True)
    bank.record("trained", [entry.id], 5)
    bank.replace([2], (), BY_HAND)
    bank.close()
    again = bank_of(tmp_path / "bank.sqlite")
    assert [e.text for e in again.entries.values()] == ["red lever", "green key"]
    assert again.entries[3].origin == entry.origin and again.usage[3] == bank.usage[3]
    kept = again.call(3)
    assert kept.version == 7 and kept.completion.tolist() == [4, 5] and kept.logprobs.tolist() == [-0.5, -0.25]
    assert again.call(1) is None and nearest(again, EMBED(["the red one"]), 1) == [[1]]
    record = again.explain(3)
    assert [event["kind"] for event in record["events"]] == ["retrieved", "guided", "trained"] and record["retired"] is None
    assert again.explain(2)["retired"] == "removed by hand"


def test_bank_evicts_oldest_entries_at_capacity(tmp_path):
    bank = bank_of(tmp_path / "bank.sqlite", [f"entry {i}" for i in range(7)], capacity=3)
    assert [e.text for e in bank.entries.values()] == ["entry 4", "entry 5", "entry 6"]
    assert bank.explain(1)["retired"] == "the bank was full"
    assert len(ids_of(bank.snapshot)) == 3
    bank.replace((), [(f"more {i}", EMBED(["more"])[0], Origin(), None) for i in range(5)], "")
    assert [e.text for e in bank.entries.values()] == ["more 2", "more 3", "more 4"] and ids_of(bank.snapshot) == (10, 11, 12)
    assert bank.explain(8)["retired"] == "the bank was full"


@given(st.lists(st.tuples(st.sampled_from("arub"), st.integers(0, 9)), max_size=60), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_vector_matrix_matches_entries_after_any_writes(writes, capacity):
    """Add, remove and replace in any order: rows match the entries, and snapshots never change."""
    rng, bank, vectors = np.random.default_rng(0), Bank(None, "numbers", 3, capacity), {}
    snapshots = []
    for kind, which in writes:
        living = list(bank.entries)
        old = [living[which % len(living)]] if living and kind != "a" else []
        new = [normalize(rng.normal(size=3).astype(np.float32)) for _ in range({"r": 0, "b": 2 * which}.get(kind, 1))]
        added = bank.replace(old, [("text", vector, Origin(), None) for vector in new], "why")
        vectors |= {entry.id: vector for entry, vector in zip(added, new, strict=True)}
        seen = bank.snapshot
        snapshots.append((seen, seen.vectors_ND.copy()))
        assert ids_of(seen) == tuple(bank.entries) == tuple(bank.usage) and len(ids_of(seen)) <= capacity
        np.testing.assert_allclose(seen.vectors_ND, np.array([vectors[i] for i in ids_of(seen)]).reshape(-1, 3), atol=1e-6)
    for seen, before in snapshots:
        np.testing.assert_array_equal(seen.vectors_ND, before)


def test_replace_is_atomic():
    bank = bank_of(None, ["a b", "b c", "c d"])
    bank.replace([1, 2], [("a b c", EMBED(["a b c"])[0], Origin(operation="merge", made_from=(1, 2)), None)], "merged")
    assert [e.text for e in bank.entries.values()] == ["c d", "a b c"]
    with pytest.raises(TacitError):
        bank.replace([3], [("fine", EMBED(["fine"])[0], Origin(), None), ("", EMBED(["x"])[0], Origin(), None)], "merged")
    assert [e.text for e in bank.entries.values()] == ["c d", "a b c"], "half of it is nothing of it"
    assert bank.explain(3)["retired"] is None


@pytest.mark.parametrize("text", ["", "   ", "x" * (MAX_ENTRY_CHARS + 1), "x" * 100_000, "half a \ud83d"])
def test_invalid_entry_texts_are_refused(text):
    bank = bank_of(None, ["one"])
    with pytest.raises(TacitError):
        bank.add(text, EMBED(["x"])[0], Origin())
    assert len(bank) == 1


def churned(path, rounds=40) -> Bank:
    """A bank of capacity ten after many rounds of ten new entries, each with a call of 50,000 tokens."""
    bank, long = bank_of(path, capacity=10), np.arange(50_000)
    for i in range(rounds):
        for k in range(10):
            text = f"entry {i} {k}"
            call = Call(long, np.array([i, k]), np.zeros(2, np.float32))
            bank.replace([], [(text, EMBED([text])[0], Origin(task=text, step=i), call)], "")
        bank.record("trained", list(bank.entries), i)
        bank.drop_retired_calls()
    return bank


@pytest.mark.slow
def test_retired_entries_keep_history_but_not_calls(tmp_path):
    bank = churned(tmp_path / "bank.sqlite")
    assert (tmp_path / "bank.sqlite").stat().st_size < 40 * 10 * 50_000 * 8 / 10, "room is used again"
    record = bank.explain(17)
    assert record["text"] == record["origin"]["task"] == "entry 1 6" and record["retired"] == "the bank was full"
    assert record["origin"]["call"] is None and bank.call(17) is None and bank.training_steps(17) == [1]
    assert all(bank.call(i).completion.tolist() == [39, i - 391] for i in bank.entries), "the living keep theirs"
    bank.save_to(tmp_path / "copy.sqlite")
    assert (tmp_path / "copy.sqlite").stat().st_size < 14 * 50_000 * 8
    bank.close()
    again = bank_of(tmp_path / "bank.sqlite", capacity=10)
    assert again.training_steps(17) == [1] and len(again) == 10 and again.add("more", EMBED(["more"])[0], Origin()).id == 401


def test_call_is_kept_until_all_its_entries_are_dropped(tmp_path):
    bank = bank_of(tmp_path / "bank.sqlite")
    call = Call(np.array([1]), np.array([2, 3]), np.zeros(2, np.float32))
    first, second = (bank.add(text, EMBED([text])[0], Origin(), call) for text in ("one", "two"))
    with sqlite3.connect(tmp_path / "bank.sqlite") as base:  # make both entries share one call
        base.execute("UPDATE entries SET call = (SELECT min(id) FROM calls)")
        base.execute("DELETE FROM calls WHERE id > (SELECT min(id) FROM calls)")
    bank.replace([first.id], (), BY_HAND)
    assert bank.call(first.id) is not None, "somebody it guides may still be playing"
    bank.drop_retired_calls()
    assert bank.call(first.id) is None and bank.call(second.id).completion.tolist() == [2, 3]
    bank.replace([second.id], (), BY_HAND)
    bank.close()
    again = bank_of(tmp_path / "bank.sqlite")
    assert again.call(second.id) is not None, "killed before it let go, it knows what to let go"
    again.drop_retired_calls()
    assert again.call(second.id) is None and not again.database.execute("SELECT * FROM calls").fetchall()


def test_wrong_vectors_embedders_and_files_are_refused(tmp_path):
    bank = bank_of(tmp_path / "bank.sqlite", ["one"])
    with pytest.raises(TacitError, match=r"shape \(3,\)"):
        bank.add("two", np.ones(3), Origin())
    with pytest.raises(TacitError, match="finite"):
        bank.add("two", np.full(EMBED.dimensions, np.nan), Origin())
    bank.close()
    with pytest.raises(TacitError, match="embedder '3-grams', but this is 'minilm'"):
        Bank(tmp_path / "bank.sqlite", "minilm", EMBED.dimensions)
    (tmp_path / "other.sqlite").write_bytes(b"not a database, by any means" * 100)
    with pytest.raises(TacitError, match="cannot open the experience bank"):
        bank_of(tmp_path / "other.sqlite")


def test_bank_is_restored_from_a_copy(tmp_path):
    bank = bank_of(tmp_path / "bank.sqlite", ["one", "two"])
    bank.record("retrieved", [1], 3)
    bank.save_to(tmp_path / "copy.sqlite")
    bank.add("three", EMBED(["three"])[0], Origin())
    bank.replace([1], (), "merged")
    bank.restore_from(tmp_path / "copy.sqlite")
    assert [e.text for e in bank.entries.values()] == ["one", "two"] and bank.usage[1].retrieved == 1
    assert bank.add("again", EMBED(["again"])[0], Origin()).id == 3, "ids go on as they would have"
    bank.close()
    assert len(bank_of(tmp_path / "bank.sqlite")) == 3


def test_failed_restore_leaves_the_bank_unchanged(tmp_path):
    """One copy has another embedder, the other a corrupt row."""
    bank = bank_of(tmp_path / "bank.sqlite", ["one", "two"])
    Bank(tmp_path / "theirs.sqlite", "another", EMBED.dimensions).close()
    bank.save_to(tmp_path / "damaged.sqlite")
    with sqlite3.connect(tmp_path / "damaged.sqlite") as base:
        base.execute("UPDATE entries SET origin = 'no JSON' WHERE id = 2")
    before = hashlib.sha256((tmp_path / "theirs.sqlite").read_bytes()).hexdigest()
    with pytest.raises(TacitError, match=r"theirs\.sqlite was made with embedder 'another'"):
        bank.restore_from(tmp_path / "theirs.sqlite")
    with pytest.raises(ValueError, match="Expecting value"):
        bank.restore_from(tmp_path / "damaged.sqlite")
    assert [e.text for e in bank.entries.values()] == ["one", "two"]
    assert bank.add("three", EMBED(["three"])[0], Origin()).id == 3
    bank.close()
    assert len(bank_of(tmp_path / "bank.sqlite")) == 3, "it is still a bank of its own embedding"
    assert hashlib.sha256((tmp_path / "theirs.sqlite").read_bytes()).hexdigest() == before


@pytest.mark.slow
def test_concurrent_readers_see_only_complete_replacements():
    """While pairs of entries are replaced by other pairs, every read sees a complete pair."""
    bank = Bank(None, "numbers", 4, capacity=10_000)
    vector = np.ones(4, np.float32)
    entries = bank.replace((), [(f"{side} 0", vector, Origin(), None) for side in ("left", "right")], "")
    stop, seen = threading.Event(), []

    def read():
        while not stop.is_set():
            ids = ids_of(bank.snapshot)
            seen.append(len(ids) == 2 and ids[1] == ids[0] + 1)
            nearest(bank, vector[None], 2)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(150):
        pair = [(f"{side} {i}", vector, Origin(), None) for side in ("left", "right")]
        entries = bank.replace([e.id for e in entries], pair, "changed")
    stop.set()
    for reader in readers:
        reader.join()
    assert seen and all(seen)


def test_search_during_replacement_always_finds_an_entry(tmp_path):
    """Searches run between any two lines of a replacement and always find an entry."""
    turns = Turns(0, FILES)
    bank = bank_of(None, ["only"])
    bank.write_lock = TurnLock(turns)
    found, over = [], []

    def write() -> None:
        for _ in range(30):
            bank.replace(list(bank.entries), [("only", EMBED(["only"])[0], Origin(), None)], "updated")
        bank.save_to(tmp_path / "copy.sqlite")
        bank.restore_from(tmp_path / "copy.sqlite")
        over.append(True)

    def search() -> None:
        while not over:
            turns.pause()
            found.extend(retrieve(bank, EMBED, [Query("only")], 1, Diversity(), count=False))

    turns.play([write, search, search])
    assert len(found) > 30 and all(entry is not None and entry.text == "only" for entry in found)


@pytest.mark.slow
def test_acknowledged_writes_survive_a_hundred_kills(tmp_path):
    """A kill may come while the bank is opened, written or idle.

    Afterwards the bank is as after the last acknowledged write, or after the write that was in progress.
    """
    assert kill_writers(tmp_path / "bank.sqlite", 100, random.Random(0)) > 100


def kill_writers(path: Path, kills: int, rng: random.Random) -> int:
    """Kill writers `kills` times; return the number of writes."""
    model, written = bank_writer.opened(None), 0
    with Nursery() as nursery:
        for _ in range(kills):
            output = nursery.killed_after(rng.randrange(8), rng.uniform(0.0, 0.002), str(path), written)
            numbers = [int(line) for line in output.split(b"\n")[:-1] if line != b"open"]
            for number in numbers:
                assert number == written
                bank_writer.apply(model, written)
                written += 1
            bank = bank_writer.opened(path)
            if bank_writer.contents(bank) != bank_writer.contents(model):  # committed, but killed before the acknowledgement
                bank_writer.apply(model, written)
                written += 1
            assert bank_writer.contents(bank) == bank_writer.contents(model)
            assert ids_of(bank.snapshot) == tuple(bank.entries)
            bank.close()
    return written


def test_bank_opens_after_kill_during_creation(tmp_path):
    class Deadly:
        def __conform__(self, protocol):
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            Bank(tmp_path / "bank.sqlite", Deadly(), EMBED.dimensions)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert len(bank_of(tmp_path / "bank.sqlite", ["one"])) == 1


def test_locked_database_error_says_what_to_do(tmp_path):
    bank = bank_of(tmp_path / "bank.sqlite", ["one"])
    bank.database.execute("PRAGMA busy_timeout=20")
    other = sqlite3.connect(tmp_path / "bank.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TacitError, match=r"bank.sqlite \(database is locked\). If another process writes to it, wait"):
        bank.add("two", EMBED(["two"])[0], Origin())
    assert [e.text for e in bank.entries.values()] == ["one"]
    other.execute("ROLLBACK")
    bank.add("three", EMBED(["three"])[0], Origin())
    assert [e.text for e in read_bank(tmp_path / "bank.sqlite").entries.values()] == ["one", "three"]


def test_full_disk_is_reported_and_the_bank_stays_usable(tmp_path):
    bank = bank_of(tmp_path / "bank.sqlite", ["one", "two"])
    with pytest.raises(TacitError, match=r"cannot write the experience bank to .*Check free space"):
        bank.save_to(tmp_path / "no such directory" / "copy.sqlite")
    bank.save_to(tmp_path / "copy.sqlite")
    bank.database.execute("PRAGMA max_page_count=1")  # no free pages
    long = Call(np.arange(100_000), np.array([1]), np.zeros(1, np.float32))
    with pytest.raises(TacitError, match=r"database or disk is full.*free space"):
        bank.add("three", EMBED(["three"])[0], Origin(), long)
    assert [e.text for e in bank.entries.values()] == ["one", "two"] and nearest(bank, EMBED(["one"]), 1) == [[1]]
    bank.database.execute("PRAGMA max_page_count=1000000")
    assert bank.add("four", EMBED(["four"])[0], Origin(), long).id == 3


class Nursery:
    """A process with everything imported that forks a writer for each kill; a fresh interpreter would take seconds."""

    SCRIPT = """
import os, signal, sys, time
import bank_writer
for line in sys.stdin:
    lines, seconds, path, first = line.rstrip("\\n").split("\\t")
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        bank_writer.write_without_end(path, int(first), theirs)
    os.close(theirs)
    output = b""
    while output.count(10) < int(lines):
        output += os.read(ours, 1)
    time.sleep(float(seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print((output + b"".join(iter(lambda: os.read(ours, 65536), b""))).hex(), flush=True)
    os.close(ours)
"""

    def __enter__(self) -> Nursery:
        paths = os.pathsep.join([str(Path(bank_writer.__file__).parent), *filter(None, sys.path)])
        env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", self.SCRIPT]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        return self

    def killed_after(self, lines: int, seconds: float, path: str, first: int) -> bytes:
        """The output of a child that is killed `seconds` after its first `lines` lines."""
        self._process.stdin.write(f"{lines}\t{seconds}\t{path}\t{first}\n")
        self._process.stdin.flush()
        return bytes.fromhex(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=30)


def test_retrieval_score_matches_hand_computed_values():
    bank = bank_of(None, ["open the red box", "open the red chest", "paint a wall"])
    fresh = Diversity(candidates=3, penalty=0.4, recency=2)
    assert score(bank, 1, rank=0, step=5, diversity=fresh) == 0.0
    bank.record("retrieved", [1, 1, 1], 4)
    assert score(bank, 1, rank=0, step=5, diversity=fresh) == pytest.approx(-0.4 * np.log(4) - 1)
    assert score(bank, 1, rank=2, step=6, diversity=fresh) == pytest.approx(-2 - 0.4 * np.log(4))


def test_equal_queries_get_diverse_entries():
    bank = bank_of(None, ["open the red box", "open the red chest", "open the red bag", "paint a wall"])
    embedded_texts: list[str] = []
    embed = CachedEmbedding(lambda texts: embedded_texts.extend(texts) or EMBED(texts))
    found = retrieve(bank, embed, [Query("open the red thing")] * 4, step=1, diversity=Diversity(candidates=3, penalty=2.0))
    assert len({entry.id for entry in found}) >= 2 and embedded_texts == ["open the red thing"]
    before = {i: vars(u).copy() for i, u in bank.usage.items()}
    again = retrieve(bank, embed, [Query("open the red thing")], 1, Diversity(), count=False)
    assert again[0] is not None and {i: vars(u) for i, u in bank.usage.items()} == before
    assert retrieve(bank_of(None), embed, [Query("anything")], 1, Diversity()) == [None]
