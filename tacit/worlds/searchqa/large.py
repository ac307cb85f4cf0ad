"""BM25 over a corpus that does not fit into memory, such as wiki-18 with its 21 million passages: an index on disk.

It is built once, next to the corpus, in one pass over the file and one over what that wrote; then it is memory-mapped.

    CORPUS.index/meta.json        sizes, and the corpus it was made from
                 text, places     the passages, and where each begins
                 words, spelled   the words in order, and where each begins
                 starts           where each word's postings begin
                 documents        postings: passages with the word
                 impacts          postings: idf(w) · tf / (tf + k₁(1 − b + b|d|/|d̄|)), what the passage scores for the word

Scores, order and ties are those of `retrieval.Bm25`.
"""

from __future__ import annotations

import json
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.progress import pluralize, report_while
from tacit.worlds.searchqa.retrieval import K1, B, Passage, best, content_words

VERSION = 1
CHUNK = 500_000  # passages whose postings are sorted in memory at a time
META = "meta.json"


class DiskIndex(Sequence[Passage]):
    """The passages, and their retriever."""

    def __init__(self, directory: Path) -> None:
        meta = json.loads((directory / META).read_text())
        self._size = int(meta["passages"])

        def mapped(name: str, kind: str) -> np.ndarray:
            file = directory / name
            return np.memmap(file, kind, "r") if file.stat().st_size else np.empty(0, kind)

        self._text, self._words = mapped("text", "u1"), mapped("words", "u1")
        self._places, self._spelled, self._starts = (mapped(name, "<u8") for name in ("places", "spelled", "starts"))
        self._documents, self._impacts = mapped("documents", "<u4"), mapped("impacts", "<f4")

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> Passage: ...

    @overload
    def __getitem__(self, place: slice) -> list[Passage]: ...

    def __getitem__(self, place: int | slice) -> Passage | list[Passage]:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(self._size))]
        if not 0 <= place < self._size:
            raise IndexError(place)
        title, _, text = bytes(self._text[self._places[place] : self._places[place + 1]]).decode().partition("\n")
        return Passage(title, text)

    def find(self, query: str, count: int) -> Sequence[int]:
        known = [word for word in map(self._find_word, content_words(query)) if word is not None]
        if not known or not count:
            return ()
        scores_N = np.zeros(self._size, np.float32)
        for word in known:
            postings = slice(int(self._starts[word]), int(self._starts[word + 1]))
            scores_N[self._documents[postings]] += self._impacts[postings]
        least = np.partition(scores_N, -min(count, self._size))[-min(count, self._size)] - 1e-4  # `best` rounds to four digits
        near = np.flatnonzero(scores_N >= max(least, 1e-9))
        return [int(near[n]) for n in best(scores_N[near], count)]

    def _find_word(self, word: str) -> int | None:
        wanted, low, high = word.encode(), 0, len(self._spelled) - 1
        while low < high:
            middle = (low + high) // 2
            spelled = bytes(self._words[self._spelled[middle] : self._spelled[middle + 1]])
            if spelled == wanted:
                return middle
            low, high = (middle + 1, high) if spelled < wanted else (low, middle)
        return None


def open_disk_index(corpus: Path, digest: str, passages: Iterable[Passage]) -> DiskIndex:
    """The index next to the corpus. Built from `passages` where there is none, or one of another corpus."""
    directory = corpus.with_name(f"{corpus.name}.index")
    try:
        meta = json.loads((directory / META).read_text())
    except (OSError, ValueError):
        meta = {}
    if (meta.get("version"), meta.get("digest")) != (VERSION, digest):
        unfinished, done = directory.with_name(f".{directory.name}.{os.getpid()}"), [0]
        try:
            unfinished.mkdir()
            with report_while(print, f"building the index {directory}, once", lambda: pluralize(done[0], "passage")):
                build_index(unfinished, passages, digest, done)
            shutil.rmtree(directory, ignore_errors=True)
            unfinished.rename(directory)
        except OSError as error:
            raise TacitError(
                f"cannot write the index {directory}: {error}. It takes about twice the corpus's space."
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return DiskIndex(directory)


def build_index(directory: Path, passages: Iterable[Passage], digest: str, done: list[int], chunk: int = CHUNK) -> None:
    """`done[0]` counts the passages read."""
    known: dict[str, int] = {}
    lengths, places = array("I"), array("Q", [0])
    parts: list[Path] = []
    documents, words, counts = array("I"), array("I"), array("H")

    def flush() -> None:
        part = directory / f"part-{len(parts)}.npz"
        order = np.argsort(np.asarray(words), kind="stable")
        np.savez(part, documents=np.asarray(documents)[order], words=np.asarray(words)[order], counts=np.asarray(counts)[order])
        parts.append(part)
        del documents[:], words[:], counts[:]

    with open(directory / "text", "wb") as out:
        for number, (title, text) in enumerate(passages):
            line = f"{title}\n{text}".encode()
            out.write(line)
            places.append(places[-1] + len(line))
            found = Counter(content_words(f"{title} {text}"))
            lengths.append(found.total())
            documents.extend([number] * len(found))
            words.extend(known.setdefault(word, len(known)) for word in found)
            counts.extend(min(count, 65535) for count in found.values())
            done[0] = number + 1
            if done[0] % chunk == 0:
                flush()
    flush()
    size, lengths_N = len(lengths), np.asarray(lengths, np.float64)
    np.asarray(places, "<u8").tofile(directory / "places")
    spelled = sorted(known, key=str.encode)
    rank_V = np.empty(len(known), np.int64)
    rank_V[[known[word] for word in spelled]] = np.arange(len(known))
    encoded = [word.encode() for word in spelled]
    (directory / "words").write_bytes(b"".join(encoded))
    np.concatenate([[0], np.cumsum([len(word) for word in encoded])]).astype("<u8").tofile(directory / "spelled")
    del known, spelled, encoded

    containing_V = np.zeros(len(rank_V), np.int64)
    for part in parts:
        containing_V += np.bincount(rank_V[np.load(part)["words"]], minlength=len(rank_V))
    starts_V = np.concatenate([[0], np.cumsum(containing_V)])
    starts_V.astype("<u8").tofile(directory / "starts")
    idf_V = np.log(1 + (size - containing_V + 0.5) / (containing_V + 0.5))
    norms_N = (K1 * (1 - B + B * lengths_N / max(float(lengths_N.mean()) if size else 1.0, 1e-9))).astype(np.float32)
    total, next_V = int(starts_V[-1]), starts_V[:-1].copy()
    for name in ("documents", "impacts"):
        with open(directory / name, "wb") as out:
            out.truncate(4 * total)
    into = np.memmap(directory / "documents", "<u4", "r+") if total else np.empty(0, "<u4")
    worth = np.memmap(directory / "impacts", "<f4", "r+") if total else np.empty(0, "<f4")
    for part in parts:
        loaded = np.load(part)
        words_P, documents_P, counts_P = rank_V[loaded["words"]], loaded["documents"], loaded["counts"].astype(np.float32)
        first_P = np.concatenate([[True], words_P[1:] != words_P[:-1]]) if len(words_P) else np.empty(0, bool)
        begins_P = np.maximum.accumulate(np.where(first_P, np.arange(len(words_P)), 0))
        places_P = next_V[words_P] + np.arange(len(words_P)) - begins_P
        into[places_P] = documents_P
        worth[places_P] = (idf_V[words_P] * counts_P / (counts_P + norms_N[documents_P])).astype(np.float32)
        next_V += np.bincount(words_P, minlength=len(next_V))
        part.unlink()
    meta = {"version": VERSION, "digest": digest, "passages": size, "words": len(rank_V), "postings": total}
    (directory / META).write_text(json.dumps(meta))
