"""Question files as tasks. SEARCHQA_DATA is a folder or a single question file. A file's corpus is the one with the longest
common name prefix (`hotpotqa_train_corpus.json`), else `corpus.json`, else the `context` of the questions.

Files with `train` in their name belong to `published_train`, those with dev, valid, val or test to `published_test`; for other
files, a digest of each question decides. A question in a test file is never in the training split. Unreadable entries are
reported and skipped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from tacit.core.errors import TacitError, install_command, unknown
from tacit.core.registry import path_from_env
from tacit.core.tasks import describe_failures, shuffle_key
from tacit.core.types import Task
from tacit.worlds.searchqa.retrieval import (
    SCORINGS,
    Passage,
    check_server,
    is_address,
    normalize_answer,
    sanitize,
    sanitize_passage,
)

# Passages are [{"title", "text"}, …], JSON lines of such objects or of {"id", "contents": "title\ntext"}, or {"title":
# [sentence, …], …}. Questions are a list or JSON lines of objects with question, answer(s) (answers, golden_answers,
# answer_aliases), kind or type (default one_hop), titles of the supporting passages (entity_titles, second_hop_titles,
# supporting_facts), context (HotpotQA) or paragraphs (MuSiQue), _id, id or idx, and metadata (FlashRAG) with any of these.
# HotpotQA's tables may be rows ([[title, …], …]), as from its authors, or columns ({"title": […], …}), as on Hugging Face.

FAMILIES = ("one_hop", "bridge", "comparison")
KINDS: Mapping[str, str] = {
    **{family: family for family in FAMILIES}, "": "one_hop", "inference": "bridge", "compositional": "bridge",
    "bridge_comparison": "comparison",
}  # fmt: skip
"""kind in a question file -> family"""

T = TypeVar("T")


@dataclass(frozen=True)
class Loaded(Generic[T]):
    rows: tuple[T, ...]
    failures: tuple[str, ...] = ()  # `file, line: reason` for each entry that could not be read

    def report(self, noun: str) -> str:
        return f"{len(self.rows)} {noun} loaded{describe_failures(self.failures)}"


class Question(NamedTuple):
    family: str
    text: str
    answers: tuple[str, ...]
    titles: tuple[str, ...]  # of the supporting passages, in order


@dataclass(frozen=True)
class FileQuestion:
    id: str
    question: Question
    context: tuple[Passage, ...] = ()
    hops: int = 0  # steps of its decomposition; 0 if unknown


def read_questions(path: Path) -> Loaded[FileQuestion]:
    numbers: dict[str, int] = {}

    def read_unique(number: int, entry: Any) -> FileQuestion:
        question = _question(number, entry)
        if numbers.setdefault(question.id, number) != number:
            raise TacitError(
                f"question {number} has the id {question.id!r} of question {numbers[question.id]}, so it is left out"
            )
        return question

    if path.suffix in (".jsonl", ".parquet") and path.is_file():
        _refuse_passages(path)
    return _read(path, read_unique)


def _refuse_passages(path: Path) -> None:
    """Raise TacitError if the file is a corpus with an unusual name, such as wiki-18.jsonl; checks the first entry."""
    with open(path, encoding="utf-8-sig", errors="replace") as lines:
        first = next(_parquet_rows(path), None) if path.suffix == ".parquet" else _decode(lines.readline())
    if isinstance(first, dict) and "question" not in first and ("contents" in first or {"title", "text"} <= first.keys()):
        raise TacitError(f"{path} holds passages, not questions; rename it to corpus{path.suffix} to use it as the corpus.")


def read_passages(path: Path) -> Loaded[Passage]:
    return _read(path, lambda _, entry: _passage(entry))


def _read(path: Path, make: Callable[[int, Any], T]) -> Loaded[T]:
    """Apply `make(number, entry)` to all entries of a file. Raises TacitError if all fail."""
    rows, failures = [], []
    for number, (line, entry) in enumerate(_entries(path), 1):
        try:
            if isinstance(entry, TacitError):
                raise entry
            rows.append(make(number, entry))
        except (TacitError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            failures.append(f"{path}, line {line}: {reason}.")
    if not rows:
        raise TacitError(f"nothing could be loaded. {failures[0] if failures else f'{path} is empty.'}")
    return Loaded(tuple(rows), tuple(failures))


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """(first line, entry or TacitError) of each entry"""
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), 1)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read {path}: {error}.") from error
    first, _, rest = text.strip().partition("\n")
    lined = first.startswith("{") and rest.lstrip().startswith("{") and not isinstance(_decode(first), TacitError)
    if path.suffix == ".jsonl" or lined or not first.startswith(("[", "{")):  # JSON lines, whatever the suffix
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, _decode(line)
        return
    yield from _decode_members(text)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise TacitError(f"reading {path.name} needs pyarrow: {install_command('parquet')}.") from error
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=10_000):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise TacitError(f"cannot read {path}: {error}.") from error


def stream_passages(path: Path) -> Iterator[Passage]:
    """The passages of a large .jsonl or .parquet corpus, one at a time. Skips unreadable ones and logs their number."""
    if path.suffix == ".json":
        raise TacitError(f"{path} has {path.stat().st_size / 2**30:.1f} GiB; convert a large corpus to .jsonl or .parquet.")
    failed = 0
    with open(path, encoding="utf-8-sig", errors="replace") as lines:
        for entry in _parquet_rows(path) if path.suffix == ".parquet" else map(_decode, lines):
            try:
                yield _passage(entry)
            except (TacitError, KeyError, TypeError, ValueError, AttributeError):
                failed += 1
    if failed:
        _log.warning("%s: %d passages could not be read and were skipped.", path, failed)


def _decode(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        return TacitError(f"not valid JSON ({error})")


def _decode_members(text: str) -> Iterator[tuple[int, Any]]:
    """(line, member) of a list, or (line, (key, value)) of an object. Decodes one at a time, up to the first error."""
    decoder, counted, line = json.JSONDecoder(), 0, 1
    begin = len(text) - len(text.lstrip())
    keyed, spot = text[begin] == "{", begin + 1
    while True:
        while spot < len(text) and text[spot] in " \t\r\n,":
            spot += 1
        line, counted = line + text.count("\n", counted, spot), spot
        if spot < len(text) and text[spot] in "]}":
            return
        try:
            entry, spot = decoder.raw_decode(text, spot)
            if keyed:
                colon = text.index(":", spot) + 1
                while text[colon] in " \t\r\n":
                    colon += 1
                value, spot = decoder.raw_decode(text, colon)
                entry = (entry, value)
        except (ValueError, IndexError) as error:
            yield line, TacitError(f"not valid JSON, so nothing after it could be read ({error})")
            return
        yield line, entry


def _passage(entry: Any) -> Passage:
    if isinstance(entry, tuple):
        title, text = entry
    elif "contents" in entry:
        title, _, text = str(entry["contents"]).partition("\n")
        title = title.strip().strip('"')
    else:
        title, text = entry["title"], entry["sentences"] if "sentences" in entry else entry["text"]
    passage = sanitize_passage(_text(title, "title"), "".join(text) if isinstance(text, list) else _text(text, "text"))
    if not passage.title or not passage.text:
        raise TacitError("a passage needs a title and a text")
    return passage


def _question(number: int, entry: Any) -> FileQuestion:
    text = sanitize(_text(entry["question"], "question"))
    metadata = entry.get("metadata") if isinstance(entry.get("metadata"), dict) else {}
    fields = {**metadata, **entry}
    raw_answers = next((fields[name] for name in ("golden_answers", "answers", "answer") if name in fields), None)
    raw_answers = [*(raw_answers if isinstance(raw_answers, list) else [raw_answers]), *(fields.get("answer_aliases") or ())]
    answers = tuple(dict.fromkeys(_text(a, "answer").strip() for a in raw_answers if a is not None))
    if not text or not answers or not all(answers):
        raise TacitError("it has no question" if not text else "it has no answer")
    if fields.get("answerable") is False:
        raise TacitError("its passages do not answer it (answerable: false)")
    hops = len(fields.get("question_decomposition") or ())
    kind = str(fields.get("kind", fields.get("type", "bridge" if hops > 1 else "")) or "")
    if kind not in KINDS:
        raise TacitError(f"its kind {kind!r} is none of {', '.join(filter(None, KINDS))}")
    paragraphs = fields.get("paragraphs") or ()
    named = [*(fields.get("entity_titles") or ()), *(fields.get("second_hop_titles") or ())]
    named = named or [fact[0] for fact in _as_rows(fields.get("supporting_facts"), "title")]
    named = named or [paragraph["title"] for paragraph in paragraphs if paragraph.get("is_supporting")]
    titles = tuple(dict.fromkeys(sanitize_passage(_text(title, "title"), "").title for title in named))
    table = fields.get("context")
    passages = _as_rows(table, "title", "content" if isinstance(table, dict) and "content" in table else "sentences")
    context = [sanitize_passage(title, "".join(sentences)) for title, sentences in passages]
    context += [sanitize_passage(_text(p["title"], "title"), _text(p["paragraph_text"], "text")) for p in paragraphs]
    name = next((entry[name] for name in ("_id", "id", "idx") if entry.get(name) is not None), number)
    return FileQuestion(str(name), Question(KINDS[kind], text, answers, titles), tuple(context), hops)


def _as_rows(table: Any, *columns: str) -> Sequence[Sequence[Any]]:
    """A table of rows or of columns as a list of rows; empty if missing."""
    if isinstance(table, dict):
        return list(zip(*(table[column] for column in columns), strict=True))
    return table or ()


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TacitError(f"its {what} is not text but {value!r}"[:200])
    return value


NAME = "searchqa"
DATA_VARIABLE, RETRIEVER_VARIABLE, SCORING_VARIABLE = "SEARCHQA_DATA", "SEARCHQA_RETRIEVER", "SEARCHQA_SCORING"
TRAIN, TEST = "published_train", "published_test"
SPLITS = (TRAIN, TEST)
USUAL_RETRIEVER = "bm25"
CONTEXTS = "context of "  # corpus name if the questions' contexts are the corpus: this prefix and the question file

_SUFFIXES = (".json", ".jsonl", ".parquet")
LARGE = 256 * 2**20  # bytes; larger corpora get an index on disk
_PARTS = {"train": TRAIN, "dev": TEST, "valid": TEST, "validation": TEST, "val": TEST, "test": TEST}
_log = logging.getLogger(__name__)


def published_tasks(
    split: str,
    count: int,
    seed: int,
    families: Sequence[str] = FAMILIES,
    root: Path | str | None = None,
    retriever: str = "",
    scoring: str | None = None,
) -> tuple[Task, ...]:
    """`count` questions of a split, ordered by seed and id. With `families`, fewer if there are not enough."""
    source = Path(root) if root else data_root()
    scoring = os.environ.get(SCORING_VARIABLE, "") if scoring is None else scoring
    retriever = retriever or os.environ.get(RETRIEVER_VARIABLE, "") or USUAL_RETRIEVER
    if scoring not in SCORINGS:
        raise unknown("scoring of world 'searchqa'", scoring, filter(None, SCORINGS))
    if is_address(retriever):
        check_server(retriever)
    there = [t for t in _tasks(source, seed, retriever, scoring) if t.split == split]
    wanted = sorted((task for task in there if task.family in families), key=lambda task: shuffle_key(seed, task.id))
    if len(wanted) < count and set(families) >= set(FAMILIES):
        raise TacitError(
            f"{count} questions of {split!r} were requested, but {source} has {len(wanted)}; ask for fewer "
            "(--evaluation.tasks, --tasks) or add question files."
        )
    return tuple(wanted[:count])


def data_root() -> Path:
    return path_from_env(
        DATA_VARIABLE,
        f"no question files found: set {DATA_VARIABLE} to a folder with, for instance, hotpotqa_train.json and "
        "hotpotqa_train_corpus.json, or to one question file, or use a generated split (train, test, hard).",
    )


def corpus_of(name: str, root: Path) -> Loaded[Passage]:
    folder = root if root.is_dir() else root.parent
    if not name.startswith(CONTEXTS):
        return read_passages(folder / name)
    questions = _read_once(folder / name.removeprefix(CONTEXTS))
    return Loaded(tuple(dict.fromkeys(p for question in questions.rows for p in question.context if p.title and p.text)))


def digest_of(name: str, root: Path) -> str:
    """Digest of a corpus file, to detect a changed corpus with the same name."""
    folder = root if root.is_dir() else root.parent
    path = folder / name.removeprefix(CONTEXTS)
    if not path.is_file():
        raise TacitError(f"there is no corpus {str(path)!r}; set {DATA_VARIABLE} to its folder.")
    return hash_corpus(path, path.stat().st_mtime_ns)


def question_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise TacitError(f"there is no file or folder {str(root)!r}; check {DATA_VARIABLE}.")
    files = sorted(p for p in root.iterdir() if p.suffix in _SUFFIXES and not p.stem.endswith("corpus"))
    if not files:
        raise TacitError(f"{root} holds no question files (.json or .jsonl, beside a …_corpus.json).")
    return files


def _tasks(root: Path, seed: int, retriever: str, scoring: str) -> Iterator[Task]:
    rows: dict[str, tuple[Path, FileQuestion, str]] = {}
    failures: list[str] = []
    for path in question_files(root):
        loaded = _read_once(path)
        failures += loaded.failures
        for entry in loaded.rows:
            normalized = normalize_answer(entry.question.text)
            named = [_PARTS[part] for part in re.split(r"[_\W]+", _dataset(path).lower()) if part in _PARTS]
            split = named[0] if named else TRAIN if zlib.crc32(normalized.encode()) % 10 < 8 else TEST
            if normalized not in rows or split == TEST != rows[normalized][2]:
                rows[normalized] = path, entry, split
    if failures:
        _log.warning("%s: %s", root, Loaded(tuple(rows), tuple(failures)).report("questions"))
    with_context = {path for path, entry, _ in rows.values() if entry.context}
    files = {path: None for path, _, _ in rows.values()}
    remote = is_address(retriever)
    corpora = {path: retriever if remote else _corpus_name(path, path in with_context) for path in files}
    digests = {name: "" if remote else digest_of(name, root) for name in set(corpora.values())}
    for path, entry, split in rows.values():
        text, corpus = entry.question.text, corpora[path]
        data = {
            "question": text,
            "answers": list(entry.question.answers),
            "titles": list(entry.question.titles),
            "corpus": corpus,
            "digest": digests[corpus],
            "retriever": retriever,
            **({"hops": entry.hops} if entry.hops else {}),
            **({"scoring": scoring} if scoring else {}),
        }
        yield Task(NAME, f"{NAME}/{_dataset(path)}/{entry.id}", entry.question.family, split, seed, text, data)


def _read_once(path: Path) -> Loaded[FileQuestion]:
    """The questions of a file, cached until it changes: a run requests its tasks several times."""
    return _cached_questions(path, path.stat().st_mtime_ns)


_cached_questions = lru_cache(maxsize=16)(lambda path, changed: read_questions(path))


@lru_cache(maxsize=16)
def hash_corpus(path: Path, changed: int) -> str:
    """Digest of a file; if it is LARGE, of its size and first and last megabyte, since reading wiki-18 takes a minute."""
    with open(path, "rb") as file:
        if (size := path.stat().st_size) < LARGE:
            return hashlib.sha256(file.read()).hexdigest()[:12]
        digest = hashlib.sha256(f"{size} ".encode() + file.read(2**20))
        file.seek(-(2**20), os.SEEK_END)
        digest.update(file.read())
        return digest.hexdigest()[:12]


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
    raise TacitError(
        f"{path} has no corpus beside it: none of {', '.join(names)} (.json, .jsonl or .parquet) in {path.parent}."
    )
