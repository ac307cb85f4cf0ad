"""Corpora and questions from files, in the forms they are published in. What cannot be read does not stop the rest.

passages    [{"title", "text"}, …], or one such object a line; {"id", "contents": "title\\ntext"} a line;
            {"title": [sentence, …], …}
questions   one object a line, or a list of them:
            question           the text
            answer             a string or several; or golden_answers, or answers
            kind or type       bridge, comparison, …; where nothing is said, one_hop
            entity_titles, second_hop_titles, or supporting_facts      whose passages say it, where that is known
            context            HotpotQA's: passages, for where no corpus lies beside the questions
            _id, id or idx     else its number in the file; of two with the same, the second is left out and told

HotpotQA's supporting_facts and context are read as its authors write them ([[title, …], …]) and as Hugging Face does
({"title": […], "sent_id" or "sentences": […]}).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tacit.core.errors import TacitError
from tacit.environments.searchqa.asking import Question
from tacit.environments.searchqa.observed import Passage, made_plain, plain

FAMILIES = ("one_hop", "bridge", "comparison")
KINDS: Mapping[str, str] = {
    **{family: family for family in FAMILIES},
    "": "one_hop",
    "inference": "bridge",
    "compositional": "bridge",
    "bridge_comparison": "comparison",
}
"""what a question file calls a question -> its family"""

T = TypeVar("T")


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """What came out of a file."""

    rows: tuple[T, ...]
    failures: tuple[str, ...] = ()
    """`file, line: why`, one for each entry that could not be read"""

    def report(self, noun: str) -> str:
        text = f"{len(self.rows)} {noun} loaded"
        if self.failures:
            shown = "\n".join(f"  {failure}" for failure in self.failures[:5])
            more = f"\n  … and {len(self.failures) - 5} more" if len(self.failures) > 5 else ""
            text += f", {len(self.failures)} could not be read:\n{shown}{more}"
        return text


@dataclass(frozen=True)
class Asked:
    """A question of a file."""

    id: str
    question: Question
    context: tuple[Passage, ...] = ()


def read_questions(path: Path) -> Loaded[Asked]:
    numbers: dict[str, int] = {}

    def unlike_the_others(number: int, entry: Any) -> Asked:
        asked = _question(number, entry)
        if numbers.setdefault(asked.id, number) != number:
            raise TacitError(f"question {number} has the id {asked.id!r} of question {numbers[asked.id]}, so it is left out")
        return asked

    return _read(path, unlike_the_others)


def read_passages(path: Path) -> Loaded[Passage]:
    return _read(path, lambda _, entry: _passage(entry))


def _read(path: Path, make: Callable[[int, Any], T]) -> Loaded[T]:
    """`make` gets an entry's number in the file and the entry."""
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
    """(the line it begins on, the entry, or what is wrong with it)"""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read {path}: {error}.") from error
    if path.suffix == ".jsonl" or not text.lstrip().startswith(("[", "{")) or _is_lines(text):
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, _decoded(line)
        return
    yield from _members(text)


def _is_lines(text: str) -> bool:
    """One object a line, whatever the file is called."""
    first, _, rest = text.strip().partition("\n")
    return first.startswith("{") and rest.lstrip().startswith("{") and not isinstance(_decoded(first), TacitError)


def _decoded(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        return TacitError(f"not valid JSON ({error})")


def _members(text: str) -> Iterator[tuple[int, Any]]:
    """Members of a list, or (key, value) pairs of an object, one after the other: what stands before a fault is still read."""
    decoder, spot, counted, line = json.JSONDecoder(), 0, 0, 1
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
    passage = made_plain(_text(title, "title"), "".join(text) if isinstance(text, list) else _text(text, "text"))
    if not passage.title or not passage.text:
        raise TacitError("a passage needs a title and a text")
    return passage


def _question(number: int, entry: Any) -> Asked:
    text = plain(_text(entry["question"], "question"))
    given = next((entry[name] for name in ("golden_answers", "answers", "answer") if name in entry), None)
    answers = tuple(_text(a, "answer").strip() for a in (given if isinstance(given, list) else [given]) if a is not None)
    if not text or not answers or not all(answers):
        raise TacitError("it has no question" if not text else "it has no answer")
    kind = str(entry.get("kind", entry.get("type", "")) or "")
    if kind not in KINDS:
        raise TacitError(f"its kind {kind!r} is none of {', '.join(filter(None, KINDS))}")
    named = [*(entry.get("entity_titles") or ()), *(entry.get("second_hop_titles") or ())]
    named = named or [fact[0] for fact in _rows_of(entry.get("supporting_facts"), "title")]
    titles = tuple(dict.fromkeys(made_plain(_text(title, "title"), "").title for title in named))
    told = _rows_of(entry.get("context"), "title", "sentences")
    context = tuple(made_plain(title, "".join(sentences)) for title, sentences in told)
    name = next((entry[name] for name in ("_id", "id", "idx") if entry.get(name) is not None), number)
    return Asked(str(name), Question(KINDS[kind], text, answers, titles), context)


def _rows_of(table: Any, *columns: str) -> Sequence[Sequence[Any]]:
    """A list of rows, whether it is told by rows or by columns; nothing where there is none."""
    if isinstance(table, dict):
        return list(zip(*(table[column] for column in columns), strict=True))
    return table or ()


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TacitError(f"its {what} is not text but {value!r}"[:200])
    return value
