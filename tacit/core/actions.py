"""How an action is written down, and how what was written is taken. A wording gives the format that its words ask for.

`TAGS`  `<think>…</think><action>…</action>`: the first complete action tag, lower-cased; valid only with both think tags and
        no CJK characters (the rule of the reference implementations, so penalties mean the same).
`BARE`  the first non-empty line; valid when there is one.
A completion that does not parse is invalid; the world still gets the end of its text, as a person who mumbles is still heard.

Other tags are other actions: in the format `Tags(("search", "answer"), keep_case=True)`

    <think>Who wrote it?</think><search>author of Emma</search>        is the action  search author of Emma
    <think>I know.</think><answer>Jane Austen</answer>                 is the action  answer Jane Austen
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle

_CJK = re.compile(r"[一-鿿]")
_HEARD = 30
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""of tags only: unlike str.lower, it leaves every character where it is"""


@dataclass(frozen=True, slots=True)
class Parsed:
    action: str
    valid: bool


class ActionFormat(Protocol):
    @property
    def stop(self) -> tuple[str, ...]:
        """where a completion in this format is over"""
        ...

    @property
    def thinks(self) -> bool:
        """True where a thought comes before the action, and a completion needs room for it"""
        ...

    def parse(self, text: str) -> Parsed: ...

    def write(self, action: str, thought: str = "") -> str:
        """The completion that means `action`: what a demonstration looks like."""
        ...


@dataclass(frozen=True)
class Tags:
    kinds: tuple[str, ...] = ("action",)
    """the tags that hold an action; where there are several, the tag is the first word of the action"""
    thinks: bool = True
    """both think tags are asked for"""
    keep_case: bool = False
    """the world tells capitals from small letters"""
    cjk: bool = False
    """CJK characters may be written"""

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(f"</{kind}>" for kind in self.kinds)

    def parse(self, text: str) -> Parsed:
        """
        >>> TAGS.parse("<think>hm</think><action> Go East </action>")
        Parsed(action='go east', valid=True)
        >>> TAGS.parse("I go east")
        Parsed(action='i go east', valid=False)
        """
        said = text if self.keep_case else text.lower()
        tags = said.translate(_LOWER)
        found = [(tags.find(f"<{kind}>"), tags.find(f"</{kind}>"), kind) for kind in self.kinds]
        complete = [place for place in found if min(place[:2]) >= 0]
        if not complete:
            return Parsed(said[-_HEARD:], False)
        start, end, kind = min(complete)
        inside = said[start + len(kind) + 2 : end].strip() if start < end else ""
        thought = not self.thinks or ("<think>" in text and "</think>" in text)
        action = f"{kind} {inside}" if inside and len(self.kinds) > 1 else inside
        return Parsed(action, bool(action) and thought and (self.cjk or not _CJK.search(text)))

    def write(self, action: str, thought: str = "") -> str:
        kind, inside = self.kinds[0], action
        if len(self.kinds) > 1:
            kind, _, inside = action.partition(" ")
            if kind not in self.kinds:
                raise TacitError(f"the action {action!r} begins with none of {', '.join(self.kinds)}, so no tag can hold it.")
        before = f"<think>{thought}</think>" if self.thinks or thought else ""
        return f"{before}<{kind}>{inside}</{kind}>"


@dataclass(frozen=True)
class Bare:
    """The action on a line of its own, and nothing else."""

    stop: tuple[str, ...] = ("\n",)
    thinks: bool = False

    def parse(self, text: str) -> Parsed:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return Parsed(line, bool(line))

    def write(self, action: str, thought: str = "") -> str:
        return action


TAGS, BARE = Tags(), Bare()
FORMATS: Mapping[ActionStyle, ActionFormat] = {"tags": TAGS, "bare": BARE}
"""what a style means where the wording has no format of its own for it"""
