"""Episodes as other agents' logs have them, in the form that recordings are read in. Thoughts are left out.

    {"goal": …, "success": …, "text": "You are in a room.\nThought: hm\nAction: go east\nObservation: A hall.\n…"}
    {"goal": …, "success": …, "messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]}

A `text` is a ReAct transcript: what follows `Observation:`, `Thought:` and `Action:` (with a number, or in ALFWorld's manner:
`> go east`, `> think: hm`). Of a conversation the user's and the tools' messages are what was seen; of an assistant's the
action is what stands in <action>…</action>, after `Action:`, in the only argument of its call, or alone on its line. One that
is only a thought (`think: hm`) is no turn, nor is the `OK.` it is answered with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tacit.core.chat import OPEN_THOUGHT, split_thought
from tacit.core.errors import TacitError

_LABEL = re.compile(r"^[ \t]*(observation|thought|action)(?:[ \t]*\d+)?[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_PROMPT = re.compile(r"^>[ \t]*((?:think|thought)(?:[ \t]*\d+)?[ \t]*:)?[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"(?:thought|think)(?:[ \t]*\d+)?[ \t]*:", re.IGNORECASE)
_SAME_LINE = re.compile(
    r"^([ \t]*(?:[Tt]hought|THOUGHT|[Tt]hink)(?:[ \t]*\d+)?[ \t]*:.*)[ \t](?=(?:Action|ACTION)(?:[ \t]*\d+)?[ \t]*:)",
    re.MULTILINE,
)
"""a thought with its action behind it; only a capital tells the label from a word of the thought"""
_MARK = re.compile(r"^[ \t]*>[ \t]*", re.MULTILINE)
_TAGS = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_TASK = re.compile(r"your task is to:?[ \t]*(.+)", re.IGNORECASE)
ACKNOWLEDGED = ("OK.", "OK")
"""what ALFWorld's transcripts answer to a thought"""

Said = tuple[str, str]
"""observation, thought or action; and its text"""


def as_turns(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The line with `turns`, whichever form it has; one that has them, or has no form that is known, as it is."""
    if "turns" in data:
        return data
    if isinstance(data.get("messages"), list):
        said = list(_conversation(data["messages"]))
    elif isinstance(data.get("text"), str):
        said = list(_transcript(data["text"]))
    else:
        return data
    turns, last = _paired(said)
    goal = data.get("goal") or next(
        (found[1] for kind, text in said if kind == "observation" and (found := _TASK.search(text))), ""
    )
    return {**data, "goal": goal.strip() if isinstance(goal, str) else "", "turns": turns, **({"saw": last} if last else {})}


def _paired(said: list[Said]) -> tuple[list[dict[str, str]], str]:
    """(turns, what was seen in the end). Several texts before an action are one; thoughts are none."""
    turns: list[dict[str, str]] = []
    seen: list[str] = []
    for kind, text in said:
        if kind == "observation":
            seen.append(text)
        elif kind == "action":
            if not seen:
                raise TacitError(f"nothing was seen before action {len(turns) + 1}")
            turns.append({"saw": "\n".join(seen), "action": text})
            seen = []
    return turns, "\n".join(seen)


def _transcript(text: str) -> Iterator[Said]:
    text = _SAME_LINE.sub(r"\1\n", text)
    labels = list(_LABEL.finditer(text))
    if not any(label[1].lower() == "action" for label in labels):
        yield from _prompted(text)
        return
    if before := text[: labels[0].start()].strip():
        yield "observation", before
    for label, following in zip(labels, [*labels[1:], None], strict=True):
        words = text[label.end() : following.start() if following else len(text)].strip()
        kind = label[1].lower()
        yield kind, words.split("\n")[0].strip() if kind == "action" else words


def _prompted(text: str) -> Iterator[Said]:
    at, thought = 0, False
    for line in _PROMPT.finditer(text):
        seen = text[at : line.start()].strip()
        if seen and not (thought and seen in ACKNOWLEDGED):
            yield "observation", seen
        thought, at = line[1] is not None, line.end()
        yield "thought" if thought else "action", line[2].strip()
    if seen := text[at:].strip():
        yield "observation", seen


def _conversation(messages: list[Any]) -> Iterator[Said]:
    thought = False
    for number, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if role else None
        if role in ("user", "tool") and isinstance(content, str):
            seen = re.sub(r"^\s*observation(?:\s*\d+)?\s*:\s*", "", content, flags=re.IGNORECASE).strip()
            if not (thought and seen in ACKNOWLEDGED):
                yield "observation", seen
            thought = False
        elif role == "assistant":
            kind, text = _said(message, number)
            thought = kind == "thought"
            yield kind, text
        elif role != "system":
            raise TacitError(f"message {number} has no role (system, user, assistant, tool), or no text")


def _said(message: Mapping[str, Any], number: int) -> Said:
    if message.get("tool_calls"):
        return "action", _called(message["tool_calls"], number)
    content = message.get("content")
    said = split_thought(content)[1] if isinstance(content, str) else ""
    if tags := _TAGS.findall(said):
        return "action", tags[-1].strip()
    plain = _SAME_LINE.sub(r"\1\n", _MARK.sub("", said))
    if labels := [label for label in _LABEL.finditer(plain) if label[1].lower() == "action"]:
        return "action", plain[labels[-1].end() :].strip().split("\n")[0].strip()
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    marked = [_MARK.sub("", line) for line in lines if line.startswith(">")] or lines
    done = [line for line in marked if not _THOUGHT.match(line)]
    if marked and not done:
        return "thought", "\n".join(marked)
    if len(done) != 1 or (marked is lines and len(lines) != 1) or OPEN_THOUGHT in done[0]:
        raise TacitError(f"message {number} has no action: neither <action>…</action> nor `Action:`, and not one line alone")
    return "action", done[0]


def _called(calls: Any, number: int) -> str:
    try:
        (call,) = calls
        arguments = call["function"]["arguments"]
        (action,) = (json.loads(arguments) if isinstance(arguments, str) else arguments).values()
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TacitError(f"message {number} does not call one tool with one argument") from error
    if not isinstance(action, str):
        raise TacitError(f"message {number} calls a tool with {type(action).__name__}, not with text")
    return action
