"""A prompt as a conversation, and actions as tool calls: the input of a chat template or a chat endpoint.

system      the task, a note, the request               the same at every turn of an episode
user        the first observation
assistant   the action: text, or a tool call            past turns, as many as the context shows
tool        the result of the call                      (`user` if the action was no tool call)
…
tool        the current observation
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
    """A tool with one text argument, or with the arguments of `parameters`."""

    name: str
    argument: str = "action"
    summary: str = ""
    meaning: str = ""  # of the argument
    parameters: str = ""  # JSON schema of all arguments, unless there is exactly one

    def schema(self) -> dict[str, Any]:
        """The tool as a function in JSON schema, for templates and endpoints."""
        argument = {"type": "string", **({"description": self.meaning} if self.meaning else {})}
        parameters = {"type": "object", "properties": {self.argument: argument}, "required": [self.argument]}
        parameters = json.loads(self.parameters) if self.parameters else parameters
        return {"type": "function", "function": {"name": self.name, "description": self.summary, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]  # as in JSON

    def text(self) -> str:
        """The call in the format of the Hermes and Qwen templates."""
        payload = json.dumps({"name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{payload}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str = ""
    call: Call | None = None  # of an assistant's message


@dataclass(frozen=True, slots=True)
class Exchange:
    """One past turn: the message shown to the policy, and its answer."""

    message: str
    answer: Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt needs to be rendered as a conversation, besides its sections."""

    past: tuple[Exchange, ...] = ()  # one per entry of the prompt's history
    tools: tuple[Tool, ...] = ()
    thinking: bool = False  # turn on the template's own reasoning


@dataclass(frozen=True, slots=True)
class Chat:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    thinking: bool = False

    def to_dicts(self, as_text: bool = False) -> list[dict[str, Any]]:
        """The messages for a template; with `as_text`, arguments of calls are JSON strings, as endpoints expect."""
        dicts: list[dict[str, Any]] = []
        for number, message in enumerate(self.messages):
            entry: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.call is not None:
                arguments: Any = dict(message.call.arguments)
                arguments = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
                function = {"name": message.call.name, "arguments": arguments}
                entry["tool_calls"] = [{"id": _call_id(number), "type": "function", "function": function}]
            elif message.role == "tool":
                entry["tool_call_id"] = _call_id(number - 1)
            dicts.append(entry)
        return dicts

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
        parsed = (Message(role, content, Call(*call) if call else None) for role, content, call in messages)
        return cls(tuple(parsed), tuple(Tool(*tool) for tool in tools), thinking)


def _call_id(number: int) -> str:
    """Nine letters and digits, as the strictest templates require."""
    return f"call{number:05d}"


def split_thought(text: str) -> tuple[str, str]:
    """(thought, text after it). A template may have opened the thought already.

    >>> split_thought("<think>hm</think>go east")
    ('hm', 'go east')
    >>> split_thought("go east")
    ('', 'go east')
    """
    thought, closed, rest = text.rpartition(CLOSE_THOUGHT)
    if not closed:
        return "", text
    return thought.strip().removeprefix(OPEN_THOUGHT).strip(), rest.lstrip()
