"""Questions of files as tasks: what SEARCHQA_DATA names, a folder or a single question file.

    <root>/2wiki_questions.jsonl     2wiki_corpus.json                 the corpus is the file beside it with the longest
    <root>/hotpotqa_train.json       hotpotqa_train_corpus.json        common name; `corpus.json` serves all; without any, a
    <root>/nq_test.jsonl             corpus.jsonl                      question's own `context` does

A file that calls itself train is the split `published_train`; dev, valid, val or test is `published_test`; of any other, a
digest of each question decides, eight tenths to train. A question of the test split is never in the other, whatever file it
is in. SEARCHQA_RETRIEVER names what they are searched with (retrieval.py).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.finding import path_named_by
from tacit.core.types import Task
from tacit.environments.searchqa.answers import normalised
from tacit.environments.searchqa.files import FAMILIES, Asked, Loaded, read_passages, read_questions
from tacit.environments.searchqa.observed import Passage

NAME = "searchqa"
DATA_VARIABLE, RETRIEVER_VARIABLE = "SEARCHQA_DATA", "SEARCHQA_RETRIEVER"
TRAIN, TEST = "published_train", "published_test"
SPLITS = (TRAIN, TEST)
USUAL_RETRIEVER = "bm25"
CONTEXTS = "context of "
"""a corpus that is made of the questions' own contexts is called by this and the question file"""

_SUFFIXES = (".json", ".jsonl")
_PARTS = {"train": TRAIN, "dev": TEST, "valid": TEST, "validation": TEST, "val": TEST, "test": TEST}
_log = logging.getLogger(__name__)


def published_tasks(
    split: str,
    count: int,
    seed: int,
    families: Sequence[str] = FAMILIES,
    root: Path | str | None = None,
    retriever: str = "",
) -> tuple[Task, ...]:
    """`count` questions of a split, in an order that depends on the seed and the questions alone. Of some families only, as
    many as there are where they are fewer."""
    source = Path(root) if root else data_root()
    every = set(families) >= set(FAMILIES)
    there = [task for task in _tasks(source, seed, retriever or chosen_retriever()) if task.split == split]
    wanted = sorted((task for task in there if task.family in families), key=lambda task: _shuffle_key(seed, task.id))
    if len(wanted) < count and every:
        raise TacitError(
            f"{count} questions of {split!r} were asked for, but {source} has {len(wanted)}; ask for fewer "
            "(--evaluation.tasks, --tasks) or add question files."
        )
    return tuple(wanted[:count])


def data_root() -> Path:
    """What SEARCHQA_DATA names."""
    return path_named_by(
        DATA_VARIABLE,
        f"there are no question files: set {DATA_VARIABLE} to a folder with, for instance, hotpotqa_train.json and "
        "hotpotqa_train_corpus.json, or to one question file, or use a generated split (train, test, hard).",
    )


def chosen_retriever() -> str:
    return os.environ.get(RETRIEVER_VARIABLE, "") or USUAL_RETRIEVER


def corpus_of(name: str, root: Path) -> Loaded[Passage]:
    """The passages of a corpus by the name its tasks give it."""
    folder = root if root.is_dir() else root.parent
    if not name.startswith(CONTEXTS):
        return read_passages(folder / name)
    questions = _questions(folder / name.removeprefix(CONTEXTS))
    return Loaded(tuple(dict.fromkeys(p for asked in questions.rows for p in asked.context if p.title and p.text)))


def digest_of(name: str, root: Path) -> str:
    """Of the file a corpus is read from: another corpus of the same name is another task."""
    folder = root if root.is_dir() else root.parent
    path = folder / name.removeprefix(CONTEXTS)
    if not path.is_file():
        raise TacitError(f"there is no corpus {str(path)!r}; {DATA_VARIABLE} names where it should lie.")
    return _digest(path, path.stat().st_mtime_ns)


def question_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise TacitError(f"there is no file or folder {str(root)!r}, which {DATA_VARIABLE} should name.")
    found = sorted(p for p in root.iterdir() if p.suffix in _SUFFIXES and not p.stem.endswith("corpus"))
    if not found:
        raise TacitError(f"{root} holds no question files (.json or .jsonl, beside a …_corpus.json).")
    return found


def _tasks(root: Path, seed: int, retriever: str) -> Iterator[Task]:
    rows: dict[str, tuple[Path, Asked, str]] = {}
    failures: list[str] = []
    for path in question_files(root):
        loaded = _questions(path)
        failures += loaded.failures
        for asked in loaded.rows:
            split, same = _split(path, asked), normalised(asked.question.text)
            if same not in rows or split == TEST != rows[same][2]:
                rows[same] = path, asked, split
    if failures:
        _log.warning("%s: %s", root, Loaded(tuple(rows), tuple(failures)).report("questions"))
    told = {path for path, asked, _ in rows.values() if asked.context}
    corpora = {path: _corpus_name(path, path in told) for path in {path: None for path, _, _ in rows.values()}}
    digests = {name: digest_of(name, root) for name in set(corpora.values())}
    for path, asked, split in rows.values():
        text, corpus = asked.question.text, corpora[path]
        data = {
            "question": text,
            "answers": list(asked.question.answers),
            "titles": list(asked.question.titles),
            "corpus": corpus,
            "digest": digests[corpus],
            "retriever": retriever,
        }
        yield Task(NAME, f"{NAME}/{_dataset(path)}/{asked.id}", asked.question.family, split, seed, text, data)


def _questions(path: Path) -> Loaded[Asked]:
    return _read_once(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read_once(path: Path, changed: int) -> Loaded[Asked]:
    """Kept, as long as the file is not written to: a run asks for its tasks several times."""
    return read_questions(path)


@lru_cache(maxsize=16)
def _digest(path: Path, changed: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _dataset(path: Path) -> str:
    return path.stem.removesuffix("_questions")


def _corpus_name(path: Path, has_contexts: bool) -> str:
    parts = _dataset(path).split("_")
    names = [*("_".join([*parts[:n], "corpus"]) for n in range(len(parts), 0, -1)), "corpus"]
    for name in names:
        for suffix in _SUFFIXES:
            if (path.parent / f"{name}{suffix}").is_file():
                return f"{name}{suffix}"
    if has_contexts:
        return f"{CONTEXTS}{path.name}"
    raise TacitError(f"{path} has no corpus beside it: none of {', '.join(names)} (.json or .jsonl) in {path.parent}.")


def _split(path: Path, asked: Asked) -> str:
    for part in re.split(r"[_\W]+", _dataset(path).lower()):
        if part in _PARTS:
            return _PARTS[part]
    return TRAIN if zlib.crc32(normalised(asked.question.text).encode()) % 10 < 8 else TEST


def _shuffle_key(seed: int, task_id: str) -> bytes:
    """Orders ids at random but alike everywhere; leaving some out does not move the others."""
    return hashlib.sha256(f"{seed}:{task_id}".encode()).digest()
