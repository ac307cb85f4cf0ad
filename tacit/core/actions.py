"""Action formats: parse completions into actions, and write actions as completions. A wording chooses its format.

`TAGS`  `<think>…</think><action>…</action>`: the first complete action tag, lower-cased; valid only with both think tags and
        no CJK characters, as in the reference implementations.
`BARE`  the first non-empty line; valid if there is one.
`CALLS` a call of the tool `act`, as the model's chat template writes calls: the action is its argument.
A completion that does not parse is invalid; its last 30 characters become the action. With several tags, the tag is the first
word of the action: `Tags(("search", "answer"))` parses `<search>author of Emma</search>` as `search author of Emma`.
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
_FALLBACK_CHARACTERS = 30  # characters of an unparsed completion that become the action
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

    @property
    def thinks(self) -> bool:
        """True if a thought precedes the action, so completions need more tokens"""

    def parse(self, text: str) -> Parsed: ...

    def write(self, action: str, thought: str = "") -> str:
        """The completion for `action`, as in a demonstration."""

    def message(self, action: str, past: bool = False) -> Message:
        """The assistant's message for `action`: as a demonstration, or as a past turn without a thought."""
        return Message("assistant", self.write(action))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """empty if actions are not tool calls"""
        return ()


def _split_kind(kinds: Sequence[str], action: str) -> Sequence[str]:
    """(tag or tool, its content). With several kinds, the first word of the action is the kind."""
    return action.partition(" ")[::2] if len(kinds) > 1 else (kinds[0], action)


@dataclass(frozen=True)
class Tags(ActionFormat):
    kinds: tuple[str, ...] = ("action",)  # the tags; with several, the tag is the first word of the action
    thinks: bool = True  # both think tags are required
    keep_case: bool = False  # actions are case-sensitive; else they are lower-cased
    cjk: bool = False  # allow CJK characters

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
        cased = text if self.keep_case else text.lower()
        tags = cased.translate(_LOWER)
        spans = [(tags.find(f"<{kind}>"), tags.find(f"</{kind}>"), kind) for kind in self.kinds]
        complete = [span for span in spans if min(span[:2]) >= 0]
        if not complete:
            return Parsed(cased[-_FALLBACK_CHARACTERS:], False)
        start, end, kind = min(complete)
        inside = cased[start + len(kind) + 2 : end].strip() if start < end else ""
        has_thought = not self.thinks or ("<think>" in text and "</think>" in text)
        action = f"{kind} {inside}" if inside and len(self.kinds) > 1 else inside
        return Parsed(action, bool(action) and has_thought and (self.cjk or not _CJK.search(text)))

    def write(self, action: str, thought: str = "") -> str:
        kind, inside = _split_kind(self.kinds, action)
        if kind not in self.kinds:
            raise TacitError(f"the action {action!r} has no tag: its first word must be one of {', '.join(self.kinds)}.")
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
    """The first non-empty line is the action."""

    stop: tuple[str, ...] = ("\n",)
    thinks: bool = False

    def parse(self, text: str) -> Parsed:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return Parsed(line, bool(line))

    def write(self, action: str, thought: str = "") -> str:
        return action


@dataclass(frozen=True)
class Calls(ActionFormat):
    """A tool call with one text argument, as JSON or Qwen's XML, anywhere in the answer; the first call of a known tool."""

    kinds: tuple[str, ...] = ("act",)  # the tools; with several, the tool is the first word of the action
    argument: str = "action"
    keep_case: bool = False  # actions are case-sensitive; else they are lower-cased
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
        thought, rest = split_thought(text)
        tagged = ((name, dict(_PARAMETER.findall(inside))) for name, inside in _FUNCTION.findall(rest))
        for name, arguments in chain(find_json_calls(rest), tagged):
            inside = arguments.get(self.argument)
            if name in self.kinds and isinstance(inside, str) and inside.strip():
                action = inside.strip() if self.keep_case else inside.strip().lower()
                return Parsed(f"{name} {action}" if len(self.kinds) > 1 else action, True, thought)
        return Parsed(rest.strip()[-_FALLBACK_CHARACTERS:], False, thought)

    def message(self, action: str, past: bool = False) -> Message:
        """The tool call for `action`; plain text if it names no known tool or has no argument."""
        kind, inside = _split_kind(self.kinds, action)
        is_call = kind in self.kinds and inside.strip()
        return Message("assistant", "", Call(kind, {self.argument: inside})) if is_call else Message("assistant", action)

    def write(self, action: str, thought: str = "") -> str:
        """The call as text, for tokenizers without a chat template."""
        message = self.message(action)
        return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + (message.call.text() if message.call else action)


@dataclass(frozen=True)
class AfterThought(ActionFormat):
    """Another format, preceded by the model's own reasoning (`<think>…</think>`)."""

    answer: ActionFormat
    thinks: bool = True

    stop: tuple[str, ...] = ()  # none: a stop string might occur in the thought

    def parse(self, text: str) -> Parsed:
        thought, rest = split_thought(text)
        parsed = self.answer.parse(rest)
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
    """(name, arguments) of every tool call written as JSON, in order."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            at = text.find("{", at + 1)
            continue
        inside = value.get("function", value) if isinstance(value.get("function", value), dict) else value
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
