"""What contexts share that tell an episode as a conversation: each past turn is an exchange, and the present one a message."""

from __future__ import annotations

from tacit.core.actions import ActionFormat, AfterThought, answer, tools_of
from tacit.core.chat import Conversation, Exchange, Message, split_thought
from tacit.core.types import ActionStyle, Observation
from tacit.core.wording import Wording, format_of

CALL_ONE = "Answer with one call of a tool."
"""what is asked for where actions are calls and the wording has no `request` of its own for that (`tool_request`)"""


def form_of(wording: Wording, style: ActionStyle, thinking: bool) -> ActionFormat:
    """The format of an answer, with room for a thought where the model's own is asked for; tags have a thought of theirs."""
    own = format_of(wording, style)
    return AfterThought(own) if thinking and not own.thinks else own


def ask(wording: Wording, style: ActionStyle) -> str:
    return getattr(wording, "tool_request", CALL_ONE) if style == "tools" else wording.request(style)


def say(wording: Wording, number: int, observation: Observation, admissible: bool, correction: str = "") -> str:
    """What is seen, as a message of its own, below what is to be said of the answer before it."""
    tell = getattr(wording, "message", None) or getattr(wording, "alone", None) or wording.now
    seen = tell(number, observation, admissible)
    return f"{correction}\n{seen}" if correction else seen


def correct(form: ActionFormat, wrote: str | None) -> str:
    """What is said of an answer that called none of the tools there are: the world, which heard words it does not know, cannot
    say what was wrong with them.

    >>> from tacit.core.actions import CALLS
    >>> correct(CALLS, '{"name": "go east", "arguments": {}}')
    'Your last answer called no tool that you have. Call act with action.'
    """
    tools = tools_of(form)
    if wrote is None or not tools:
        return ""
    return f"Your last answer called no tool that you have. Call {' or '.join(f'{t.name} with {t.argument}' for t in tools)}."


def exchange(
    wording: Wording,
    form: ActionFormat,
    number: int,
    observation: Observation,
    action: str,
    wrote: str | None = None,
    correction: str = "",
) -> Exchange:
    """A past turn; the actions that were admissible then are not said again. `wrote`: what was said instead of an action, which
    is told as it was: a model that reads its words turned into a call would copy a call that it never made."""
    said = answer(form, action, past=True) if wrote is None else Message("assistant", split_thought(wrote)[1].strip())
    return Exchange(say(wording, number, observation, False, correction), said)


def conversation(form: ActionFormat, past: tuple[Exchange, ...], thinking: bool) -> Conversation:
    return Conversation(past, tools_of(form), thinking)
