"""Passages and observations, answer matching, and retrievers: bm25, a sentence encoder, or a server with Search-R1's
interface. Ties are in passage order, so every machine returns the same passages.

    bm25      score(q, d) = Σ_w idf(w) · tf(w, d) / (tf(w, d) + k₁(1 − b + b|d|/|d̄|)), k₁ = 1.5, b = 0.75   (bm25s)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import string
import urllib.request
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from tacit.core.errors import TacitError, first_line, install_command
from tacit.core.platform import load_bm25s
from tacit.core.progress import pluralize, report_while

# An observation is `Question: …` before the first search, then passages between <information> and </information>, each as
# `Doc 1: "Mara Velden" Mara Velden is a potter, …`. Passages and queries are sanitized: without angle brackets and line breaks,
# they cannot close the tag.

OPENING, CLOSING = "<information>", "</information>"
REFUSED = "Refused: "
LONGEST = 200  # maximum words of a passage

_BRACKETS = str.maketrans("<>", "[]")
_DOC = re.compile(r'^Doc \d+: "([^"\n]*)" (.*)$', re.M)
_NAME = re.compile(r"\b[^\W\d_a-z][\w'’-]*(?: (?:of |the |de |von |van )?[^\W\d_a-z][\w'’-]*)*|\b\d{4}\b")
_CAPITALIZED = """A An At Are Did Do Does For From He How I If In Into Is It Its Lake On Or She The They To Was Were What
When Where Which Who Whom Whose Why"""
_NO_NAMES = frozenset(_CAPITALIZED.split())
MAX_NAMES = 16


class Passage(NamedTuple):
    title: str
    text: str


def sanitize(text: str, most: int = 0) -> str:
    """Make external text safe between tags: one printable line without angle brackets; at most `most` characters if given."""
    line = " ".join(text.encode("utf-8", "ignore").decode().split()).translate(_BRACKETS)
    if not line.isprintable():
        line = "".join(c for c in line if c.isprintable())
    return f"{line[:most].rstrip()}…" if most and len(line) > most else line


def sanitize_passage(title: str, text: str) -> Passage:
    """A sanitized passage; double quotes in the title become single ones."""
    return Passage(sanitize(title).replace('"', "'"), sanitize(text))


def format_passages(passages: Iterable[Passage]) -> str:
    lines = []
    for number, (title, text) in enumerate(passages, 1):
        words = text.split(" ")
        excerpt = text if len(words) <= LONGEST else f"{' '.join(words[:LONGEST])} …"
        lines.append(f'Doc {number}: "{title}" {excerpt}')
    return "\n".join([OPENING, *(lines or ["Nothing was found."]), CLOSING])


def parse_passages(text: str) -> tuple[Passage, ...]:
    return tuple(Passage(*match) for match in _DOC.findall(text)) if text.startswith(OPENING) else ()


def suggest_actions(question: str, passages: Iterable[Passage]) -> tuple[str, ...]:
    """Example actions: search for, or answer with, a name that was read. Other queries and answers are allowed too."""
    texts = [question, *(f"{title}. {text}" for title, text in passages)]
    all_names = dict.fromkeys(name for text in texts for name in map(_trim_name, _NAME.findall(text)) if name)
    names = list(all_names)[:MAX_NAMES]
    return (*(f"search {name}" for name in names), *(f"answer {name}" for name in names))


def _trim_name(name: str) -> str:
    """Drop a word that is capitalized only because it begins a sentence; `The Long Winter` keeps its article."""
    first, _, rest = name.partition(" ")
    if first in _NO_NAMES and not (first in ("The", "Lake") and rest):
        return _trim_name(rest) if rest else ""
    return name.removesuffix("'s").removesuffix("’s")


# Answer matching. EM: the normalized answer (lower case, no punctuation, no articles, single spaces) is one of the golds.
# F1 = 2PR / (P + R) over shared words, the best of all golds; for yes and no, F1 is EM (HotpotQA's rule).
# Two differences from SQuAD: non-ASCII punctuation is removed too (`O’Brien’s` -> `OBriens`), and if normalization leaves
# nothing (`%`, `A`, `The The`), texts are compared in lower case with single spaces instead of all being equal.

_PUNCTUATION = str.maketrans("", "", string.punctuation + "‘’“”´–—…")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WHOLE = ("yes", "no", "noanswer")


def normalize_answer(text: str, punctuation: Mapping[int, int | None] = _PUNCTUATION) -> str:
    """`The  Devil's Hairpin!` -> `devils hairpin`"""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(punctuation)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    normalized = _comparable(answer)
    return bool(normalized) and any(normalized == _comparable(gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    pairs = [(_comparable(answer), _comparable(gold)) for gold in golds]
    whole = [answer == gold or answer in _WHOLE or gold in _WHOLE for answer, gold in pairs]
    scores = (
        float(answer == gold != "") if same else _share(answer, gold) for (answer, gold), same in zip(pairs, whole, strict=True)
    )
    return max(scores, default=0.0)


# The strict mode `squad` is SQuAD's evaluation script: ASCII punctuation only, no exception for empty texts or for yes and no.

SCORINGS = ("", "squad")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_scores(answer: str, golds: Sequence[str]) -> tuple[bool, float]:
    """(exact match, F1), each the maximum over the gold answers."""
    normalized, *pairs = (normalize_answer(text, _ASCII_PUNCTUATION) for text in (answer, *golds))
    overlaps = [_share(normalized, gold) if normalized and gold else float(normalized == gold) for gold in pairs]
    return normalized in pairs, max(overlaps, default=0.0)


def _share(answer: str, gold: str) -> float:
    shared = sum((Counter(answer.split()) & Counter(gold.split())).values())
    return 2 * shared / (len(answer.split()) + len(gold.split())) if shared else 0.0


def _comparable(text: str) -> str:
    return normalize_answer(text) or " ".join(text.lower().split())


Encode = Callable[[Sequence[str]], np.ndarray]  # N texts -> [N, D]

_WORD = re.compile(r"\w+")
_STOP = """a an and are as at be been by did do does for from how in is it its of on or that the this to was were what when
where which who whom whose why with"""
_STOPWORDS = frozenset(_STOP.split())


class Retriever(Protocol):
    def find(self, query: str, count: int) -> Sequence[int]:
        """Indices of the best `count` passages, best first; fewer if fewer match."""
        ...


BM25 = "bm25"
K1, B = 1.5, 0.75


class Bm25:
    def __init__(self, texts: Sequence[str]) -> None:
        self._ids: dict[str, int] = {}
        rows = [[self._ids.setdefault(word, len(self._ids)) for word in content_words(text)] for text in texts]
        bm25s = load_bm25s()
        self._index = bm25s.BM25(k1=K1, b=B)
        self._index.index(bm25s.tokenization.Tokenized(ids=rows, vocab=self._ids), show_progress=False)

    def find(self, query: str, count: int) -> Sequence[int]:
        scores_N = self.scores(query)
        return () if scores_N is None else best(scores_N, count)

    def scores(self, query: str) -> np.ndarray | None:
        """A score per passage; None if no passage has a word of the query."""
        ids = [self._ids[word] for word in content_words(query) if word in self._ids]
        return self._index.get_scores_from_ids(ids) if ids else None


class Dense:
    """Cosine similarity."""

    def __init__(self, texts: Sequence[str], encode: Encode) -> None:
        self._encode = encode
        self._vectors_ND = _unit(np.asarray(encode(texts), dtype=np.float32))

    def find(self, query: str, count: int) -> Sequence[int]:
        vector_D = np.asarray(self._encode([query]), dtype=np.float32)[0]
        return best(self._vectors_ND @ (vector_D / max(np.linalg.norm(vector_D), 1e-9)), count) if vector_D.any() else ()


def load_sentence_encoder(name: str) -> Encode:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise TacitError(
            f"the retriever {name!r} is not {BM25}, so it must be a sentence encoder, which needs "
            f"sentence-transformers: {install_command('sentences')}."
        ) from error
    try:
        model: Any = SentenceTransformer(name, device="cpu")
    except Exception as error:
        raise TacitError(f"cannot load the sentence encoder {name!r}: {first_line(error)} Or choose {BM25}.") from error
    return partial(model.encode, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False)


def is_address(retriever: str) -> bool:
    return retriever.startswith(("http://", "https://"))


class RetrievalServer:
    """Search-R1's retrieval server: POST {"queries", "topk", "return_scores"} -> {"result": [[{"document": {"contents"}}]]}."""

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        """`address` may omit the path /retrieve."""
        self._address = address if address.rstrip("/").count("/") > 2 else f"{address.rstrip('/')}/retrieve"
        self._timeout_s = timeout_s

    def search(self, query: str, count: int) -> list[Passage]:
        body = json.dumps({"queries": [query], "topk": count, "return_scores": True}).encode()
        request = urllib.request.Request(self._address, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                hits = json.load(response)["result"][0]
            documents = [row["document"] if isinstance(row.get("document"), dict) else row for row in hits]
            rows = [str(document["contents"]).partition("\n") for document in documents]
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise TacitError(
                f"the retrieval server {self._address} gave no passages for {query[:60]!r}: {type(error).__name__}: {error}. "
                "Check that it runs and answers as Search-R1's retrieval_server.py."
            ) from error
        return [sanitize_passage(title.strip().strip('"'), text) for title, _, text in rows[:count]]


@cache
def check_server(address: str) -> None:
    """Raise if the retrieval server does not answer."""
    RetrievalServer(address, timeout_s=10.0).search("test", 1)


def make_retriever(name: str, texts: Sequence[str]) -> Retriever:
    return Bm25(texts) if name == BM25 else Dense(texts, load_sentence_encoder(name))


def content_words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _STOPWORDS]


def best(scores_N: np.ndarray, count: int) -> list[int]:
    """Indices of the best positive scores. Scores are rounded, so that the order of summation does not change the ranking."""
    rounded_N = np.round(scores_N.astype(np.float64), 4)
    order = np.argsort(-rounded_N, kind="stable")[:count]
    return [int(i) for i in order if rounded_N[i] > 0]


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-9)


# BM25 over a corpus that does not fit into memory (wiki-18 has 21 million passages): an index on disk, built once next to the
# corpus and memory-mapped. Scores, order and ties are those of `Bm25`.
#
#     CORPUS.index/meta.json        sizes, and the digest of the corpus
#                  text, places     the passages, and their offsets
#                  words, spelled   the sorted words, and their offsets
#                  starts           offset of each word's postings
#                  documents        postings: passages with the word
#                  impacts          postings: the passage's score for the word, idf(w) · tf / (tf + k₁(1 − b + b|d|/|d̄|))

VERSION = 1
CHUNK = 500_000  # passages per in-memory sort of postings
META = "meta.json"


class DiskIndex(Sequence[Passage]):
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

    def __getitem__(self, place: Any) -> Any:
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
        def spell(number: int) -> bytes:
            return bytes(self._words[self._spelled[number] : self._spelled[number + 1]])

        wanted, size = word.encode(), len(self._spelled) - 1
        place = bisect_left(range(size), wanted, key=spell)
        return place if place < size and spell(place) == wanted else None


def open_disk_index(corpus: Path, digest: str, passages: Iterable[Passage]) -> DiskIndex:
    """The index next to the corpus. Built from `passages` if it is missing or has another digest."""
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
                f"cannot write the index {directory}: {error}. It needs about twice the disk space of the corpus."
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return DiskIndex(directory)


def build_index(directory: Path, passages: Iterable[Passage], digest: str, done: list[int], chunk: int = CHUNK) -> None:
    """Write the index files; sorts `chunk` passages at a time. `done[0]` counts the passages read."""
    word_ids: dict[str, int] = {}
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
            word_counts = Counter(content_words(f"{title} {text}"))
            lengths.append(word_counts.total())
            documents.extend([number] * len(word_counts))
            words.extend(word_ids.setdefault(word, len(word_ids)) for word in word_counts)
            counts.extend(min(count, 65535) for count in word_counts.values())
            done[0] = number + 1
            if done[0] % chunk == 0:
                flush()
    flush()
    size, lengths_N = len(lengths), np.asarray(lengths, np.float64)
    np.asarray(places, "<u8").tofile(directory / "places")
    spelled = sorted(word_ids, key=str.encode)
    rank_V = np.empty(len(word_ids), np.int64)
    rank_V[[word_ids[word] for word in spelled]] = np.arange(len(word_ids))
    encoded = [word.encode() for word in spelled]
    (directory / "words").write_bytes(b"".join(encoded))
    np.concatenate([[0], np.cumsum([len(word) for word in encoded])]).astype("<u8").tofile(directory / "spelled")
    del word_ids, spelled, encoded

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
