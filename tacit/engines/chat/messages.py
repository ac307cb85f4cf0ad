"""Conversations as an endpoint takes them, and what it answers as one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.core.chat import Call, Chat


def wire(chat: Chat) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, further fields of the request)"""
    return chat.told(as_text=True), {"tools": [tool.schema() for tool in chat.tools]} if chat.tools else {}


def text_of(message: Mapping[str, Any]) -> str | None:
    """What an answer says beside its calls: its text, whole or in parts; else a refusal, else the calls that cannot be read, as
    they came. None where there is none of these."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str)) if parts else None
    told = whole(content) if isinstance(content, str) else None
    return told or _refusal(message) or _unread_calls(message) or told


def _refusal(message: Mapping[str, Any]) -> str:
    refusal = message.get("refusal")
    return whole(refusal) if isinstance(refusal, str) else ""


def _unread_calls(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or calls_of(message):
        return ""
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
    arguments = [function.get("arguments") for function in functions if isinstance(function, Mapping)]
    return whole("\n".join(text if isinstance(text, str) else json.dumps(text) for text in arguments))


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
