"""Conversations as an endpoint takes them, and what it answers as one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.core.chat import Call, Chat


def wire(chat: Chat) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, further fields of the request)"""
    return chat.told(as_text=True), {"tools": [tool.schema() for tool in chat.tools]} if chat.tools else {}


def calls_of(message: Mapping[str, Any]) -> tuple[Call, ...]:
    """The tool calls of an answer; one that cannot be read is none."""
    found = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, Sequence) else ():
        try:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (KeyError, TypeError, ValueError):
            continue
        if isinstance(name, str) and isinstance(arguments, Mapping):
            found.append(Call(whole(name), json.loads(whole(json.dumps(arguments, ensure_ascii=False)))))
    return tuple(found)


def thought_of(message: Mapping[str, Any]) -> str:
    """The reasoning that a server keeps apart from what is said, under either of the names in use."""
    found = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((whole(text.strip()) for text in found if isinstance(text, str) and text.strip()), "")


def whole(text: str) -> str:
    """The text with a question mark for each half character: JSON can say one, and no file can hold it."""
    return text.encode("utf-8", "replace").decode()


def spoken(text: str, calls: Sequence[Call], thought: str) -> str:
    """An answer as a local model would have written it: the thought, what is said, the calls."""
    before = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return before + "\n".join(part for part in (text.strip(), *(call.text() for call in calls)) if part)
