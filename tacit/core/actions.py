"""Action formats: how completions are parsed into actions, and how actions are written. A wording chooses its format.

`TAGS`  `<think>…</think><action>…</action>`: the first complete action tag, lower-cased; valid only with both think tags and
        no CJK characters (the rule of the reference implementations, so penalties mean the same).
`BARE`  the first non-empty line; valid when there is one.
`CALLS` a call of the tool `act`, as the model's own chat template writes calls: the action is its argument.
A completion that does not parse is invalid; the world still gets the end of its text as the action. Other tags are other
actions: with `Tags(("search", "answer"))`, `<think>…</think><search>author of Emma</search>` is `search author of Emma`.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from tacit.core.chat import Call, Message, Tool, split_thought
from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle

_CJK = re.compile(r"[一-鿿]")
_HEARD = 30
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)  # unlike str.lower, it keeps every position


@dataclass(frozen=True, slots=True)
class Parsed:
    action: str
    valid: bool
    thought: str = field(default="", repr=False)  # text before the action, if the format separates the two


class ActionFormat(Protocol):
    @property
    def stop(self) -> tuple[str, ...]:
        """strings that end a completion"""
        ...

    @property
    def thinks(self) -> bool:
        """True if a thought precedes the action, so completions need more tokens"""
        ...

    def parse(self, text: str) -> Parsed: ...

    def write(self, action: str, thought: str = "") -> str:
        """The completion for `action`, as in a demonstration."""
        ...

    def message(self, action: str, past: bool = False) -> Message:
        """The assistant's message for `action`: as a demonstration, or as a past turn without a thought."""
        return Message("assistant", self.write(action))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """empty if actions are not tool calls"""
        return ()


def _split_kind(kinds: Sequence[str], action: str) -> Sequence[str]:
    """(tag or tool, what goes inside): of several kinds, the first word names it."""
    return action.partition(" ")[::2] if len(kinds) > 1 else (kinds[0], action)


@dataclass(frozen=True)
class Tags(ActionFormat):
    kinds: tuple[str, ...] = ("action",)  # tags of an action; of several, the tag is the action's first word
    thinks: bool = True  # both think tags are asked for
    keep_case: bool = False  # the world tells capitals from small letters
    cjk: bool = False  # CJK characters may be written

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
        kind, inside = _split_kind(self.kinds, action)
        if kind not in self.kinds:
            raise TacitError(f"the action {action!r} begins with none of {', '.join(self.kinds)}, so no tag can hold it.")
        before = f"<think>{thought}</think>" if self.thinks or thought else ""
        return f"{before}<{kind}>{inside}</{kind}>"

    def message(self, action: str, past: bool = False) -> Message:
        return Message("assistant", self.write_past(action) if past else self.write(action))

    def write_past(self, action: str) -> str:
        """The action in its tag, without a thought, as shown in past turns."""
        kind, inside = _split_kind(self.kinds, action)
        return f"<{kind}>{inside}</{kind}>" if kind in self.kinds else action


@dataclass(frozen=True)
class Bare(ActionFormat):
    """The action on a line of its own, and nothing else."""

    stop: tuple[str, ...] = ("\n",)
    thinks: bool = False

    def parse(self, text: str) -> Parsed:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return Parsed(line, bool(line))

    def write(self, action: str, thought: str = "") -> str:
        return action


@dataclass(frozen=True)
class Calls(ActionFormat):
    """A call of one of some tools, each with one argument: read as JSON or as Qwen's XML, wherever in the answer it stands."""

    kinds: tuple[str, ...] = ("act",)  # the tools; where there are several, the tool is the first word of the action
    argument: str = "action"
    keep_case: bool = False  # the world tells capitals from small letters
    thinks: bool = False
    summary: str = "Take one action."
    meaning: str = "the action, word for word"

    stop: tuple[str, ...] = ("</tool_call>",)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(Tool(kind, self.argument, self.summary, self.meaning) for kind in self.kinds)

    def parse(self, text: str) -> Parsed:
        """
        >>> CALLS.parse('<tool_call>{"name": "act", "arguments": {"action": "go east"}}</tool_call>')
        Parsed(action='go east', valid=True)
        """
        thought, said = split_thought(text)
        tagged = ((name, dict(_PARAMETER.findall(inside))) for name, inside in _FUNCTION.findall(said))
        for name, arguments in chain(find_json_calls(said), tagged):
            inside = arguments.get(self.argument)
            if name in self.kinds and isinstance(inside, str) and inside.strip():
                action = inside.strip() if self.keep_case else inside.strip().lower()
                return Parsed(f"{name} {action}" if len(self.kinds) > 1 else action, True, thought)
        return Parsed(said.strip()[-_HEARD:], False, thought)

    def message(self, action: str, past: bool = False) -> Message:
        """The answer that means `action`; what is none is said as it is."""
        kind, inside = _split_kind(self.kinds, action)
        known = kind in self.kinds and inside.strip()
        return Message("assistant", "", Call(kind, {self.argument: inside})) if known else Message("assistant", action)

    def write(self, action: str, thought: str = "") -> str:
        """For those who have no template: the call as most have it."""
        message = self.message(action)
        return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + (message.call.text() if message.call else action)


@dataclass(frozen=True)
class AfterThought(ActionFormat):
    """Another format, after a thought in the model's own template."""

    answer: ActionFormat
    thinks: bool = True

    stop: tuple[str, ...] = ()  # none: a stop string might occur in the thought

    def parse(self, text: str) -> Parsed:
        thought, said = split_thought(text)
        parsed = self.answer.parse(said)
        return Parsed(parsed.action, parsed.valid, thought)

    def write(self, action: str, thought: str = "") -> str:
        return self.answer.write(action)

    def message(self, action: str, past: bool = False) -> Message:
        return self.answer.message(action, past)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.answer.tools


_FUNCTION = re.compile(r"<function=(\w+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(\w+)>\s*(.*?)\s*</parameter>", re.DOTALL)


def find_json_calls(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, arguments) of every tool call that is written as JSON."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except ValueError:
            at = text.find("{", at + 1)
            continue
        inside = found.get("function", found) if isinstance(found.get("function", found), dict) else found
        arguments = inside.get("arguments", inside.get("parameters"))
        if isinstance(arguments, str):  # some write the arguments as JSON within JSON
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
        if isinstance(inside.get("name"), str) and isinstance(arguments, dict):
            yield inside["name"], arguments
        at = text.find("{", end)


TAGS, BARE, CALLS = Tags(), Bare(), Calls()
FORMATS: Mapping[ActionStyle, ActionFormat] = {"tags": TAGS, "bare": BARE, "tools": CALLS}  # default format of each style
