"""What an extractor may do to the bank: add an entry, update the one that guided the episode, or nothing; up to three at once.

json     {"operations": [{"op": "add", "text": "..."}, {"op": "update", "text": "..."}]}      for language models
terse    add: ...                                                                              for tiny ones, a line each
         update: ...
         return

What a thinking extractor thought, up to the last `</think>`, is no part of its answer; one that never came to the end of its
thought has said nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tacit.companions.experience.entries import LONGEST
from tacit.core.text import is_unicode

Kind = Literal["add", "update", "return"]
Style = Literal["json", "terse"]
KINDS: tuple[Kind, ...] = ("add", "update", "return")
MOST = 3


class Malformed(Exception):
    """An answer that says nothing the bank could do."""


@dataclass(frozen=True)
class Operation:
    kind: Kind
    text: str = ""


def read_operations(answer: str, style: Style, guided: bool) -> tuple[Operation, ...]:
    """All of the answer or none of it: one operation without sense spoils the rest. `guided`: there is an entry to update."""
    answer = after_thought(answer)
    found = _from_json(answer) if style == "json" else _from_lines(answer)
    if not 1 <= len(found) <= MOST:
        raise Malformed(f"{len(found)} operations, where there may be 1 to {MOST}")
    for operation in found:
        if operation.kind == "update" and not guided:
            raise Malformed("an update where no entry had been retrieved")
        if operation.kind != "return" and not operation.text.strip():
            raise Malformed(f"an {operation.kind} without text")
        if len(operation.text) > LONGEST:
            raise Malformed(f"a text of {len(operation.text)} characters, more than {LONGEST}")
        if not is_unicode(operation.text):
            raise Malformed("a text with half a character in it")
    if len([o for o in found if o.kind == "update"]) > 1:
        raise Malformed("one entry updated twice")
    return tuple(Operation(o.kind, o.text.strip()) for o in found)


def after_thought(answer: str) -> str:
    """The answer without what was thought before it; templates that begin the thought themselves leave only its end."""
    _, ended, said = answer.rpartition("</think>")
    return "" if not ended and said.lstrip().startswith("<think>") else said


def _from_json(answer: str) -> list[Operation]:
    document = _document(answer)
    listed = document.get("operations") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise Malformed("no list of operations")
    found = []
    for each in listed:
        if not isinstance(each, dict) or each.get("op") not in KINDS or not isinstance(each.get("text", ""), str):
            raise Malformed(f"no operation: {str(each)[:60]!r}")
        found.append(Operation(each["op"], each.get("text", "")))
    return found


def _document(answer: str) -> object:
    """The object of an answer: all from its first brace to its last. Only where that is none, what is between tags or fences:
    an entry may quote those."""
    problem = f"no JSON object in {answer[:60]!r}"
    between = (answer.partition(begin)[2].partition(end)[0] for begin, end in (("<answer>", "</answer>"), ("```", "```")))
    for text in (answer, *between):
        first, last = text.find("{"), text.rfind("}")
        if 0 <= first < last:
            try:
                return json.loads(text[first : last + 1])
            except (ValueError, RecursionError):
                problem = f"not JSON: {text[first : first + 60]!r}"
    raise Malformed(problem)


def _from_lines(answer: str) -> list[Operation]:
    found = []
    for line in filter(None, (line.strip() for line in answer.splitlines())):
        word, _, rest = line.partition(":")
        if word.strip() not in KINDS:
            raise Malformed(f"no operation: {line[:60]!r}")
        found.append(Operation(word.strip(), rest))  # type: ignore[arg-type]
    return found
