"""A prompt as a conversation, and actions as calls of tools: what a chat template or a chat endpoint is given.

system      the task, a note, what is asked for         the same at every turn of an episode
user        what was seen first
assistant   what was done: text, or a call              past turns, as many as the context shows
tool        what came of the call                       (`user`, where the turn before it was no call)
…
tool        what is seen now
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
OPEN_THOUGHT, CLOSE_THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that can be called, with one argument, a text, or those that `parameters` has."""

    name: str
    argument: str = "action"
    summary: str = ""
    meaning: str = ""  # of the argument
    parameters: str = ""  # JSON schema of all arguments, where there is not exactly one

    def schema(self) -> dict[str, Any]:
        """As templates and endpoints are told of it: a function in JSON schema."""
        argument = {"type": "string", **({"description": self.meaning} if self.meaning else {})}
        parameters = {"type": "object", "properties": {self.argument: argument}, "required": [self.argument]}
        parameters = json.loads(self.parameters) if self.parameters else parameters
        return {"type": "function", "function": {"name": self.name, "description": self.summary, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]  # as in JSON

    def text(self) -> str:
        """As the Hermes and Qwen templates write it, and most models read it."""
        meant = json.dumps({"name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{meant}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str = ""
    call: Call | None = None  # of an assistant's message


@dataclass(frozen=True, slots=True)
class Exchange:
    """One past turn: what was shown, and what was answered."""

    shown: str
    answer: Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt has beside its sections where it is told as a conversation."""

    past: tuple[Exchange, ...] = ()  # as many as the prompt has lines of history
    tools: tuple[Tool, ...] = ()
    thinking: bool = False  # let a model whose template has a thought of its own have it


@dataclass(frozen=True, slots=True)
class Chat:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    thinking: bool = False

    def to_dicts(self, as_text: bool = False) -> list[dict[str, Any]]:
        """The messages as templates take them; with the arguments of calls `as_text`, as endpoints do."""
        found: list[dict[str, Any]] = []
        for number, message in enumerate(self.messages):
            own: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.call is not None:
                arguments: Any = dict(message.call.arguments)
                arguments = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
                function = {"name": message.call.name, "arguments": arguments}
                own["tool_calls"] = [{"id": _call_id(number), "type": "function", "function": function}]
            elif message.role == "tool":
                own["tool_call_id"] = _call_id(number - 1)
            found.append(own)
        return found

    def dumps(self) -> str:
        messages = [[m.role, m.content, [m.call.name, dict(m.call.arguments)] if m.call else None] for m in self.messages]
        tools = [
            [tool.name, tool.argument, tool.summary, tool.meaning, *([tool.parameters] if tool.parameters else [])]
            for tool in self.tools
        ]
        return json.dumps([messages, tools, self.thinking], ensure_ascii=False)

    @classmethod
    def loads(cls, text: str) -> Chat:
        messages, tools, thinking = json.loads(text)
        told = (Message(role, content, Call(*call) if call else None) for role, content, call in messages)
        return cls(tuple(told), tuple(Tool(*tool) for tool in tools), thinking)


def _call_id(number: int) -> str:
    """Nine letters and digits, which is what the strictest templates ask for."""
    return f"call{number:05d}"


def split_thought(text: str) -> tuple[str, str]:
    """(the thought, what was said after it). A template may have opened the thought already.

    >>> split_thought("<think>hm</think>go east")
    ('hm', 'go east')
    >>> split_thought("go east")
    ('', 'go east')
    """
    thought, closed, said = text.rpartition(CLOSE_THOUGHT)
    if not closed:
        return "", text
    return thought.strip().removeprefix(OPEN_THOUGHT).strip(), said.lstrip()
