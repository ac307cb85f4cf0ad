"""From what the policy wrote to what it meant.

`tags`  `<think>…</think><action>…</action>`: the first complete action tag, lower-cased; valid only with both think tags and
        no CJK characters (the rule of the reference implementations, so penalties mean the same).
`bare`  the first non-empty line; valid when there is one.
A completion that does not parse is invalid; the world still gets the end of its text, as a person who mumbles is still heard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tacit.core.types import ActionStyle

_CJK = re.compile(r"[一-鿿]")
_HEARD = 30

STOP_STRINGS: dict[ActionStyle, tuple[str, ...]] = {"tags": ("</action>",), "bare": ("\n",)}
"""where a completion in this style is over"""


@dataclass(frozen=True, slots=True)
class Parsed:
    action: str
    valid: bool


def parse_action(text: str, style: ActionStyle) -> Parsed:
    """
    >>> parse_action("<think>hm</think><action> Go East </action>", "tags")
    Parsed(action='go east', valid=True)
    >>> parse_action("I go east", "tags")
    Parsed(action='i go east', valid=False)
    """
    if style == "bare":
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return Parsed(line, bool(line))
    lowered = text.lower()
    start, end = lowered.find("<action>"), lowered.find("</action>")
    if start < 0 or end < 0:
        return Parsed(lowered[-_HEARD:], False)
    action = lowered[start + len("<action>") : end].strip() if start < end else ""
    thought = "<think>" in text and "</think>" in text
    return Parsed(action, bool(action) and thought and not _CJK.search(text))


def write_action(action: str, style: ActionStyle, thought: str = "") -> str:
    """The completion that means `action`: what a demonstration looks like."""
    return action if style == "bare" else f"<think>{thought}</think><action>{action}</action>"
