"""How a world is told to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tacit.core.actions import FORMATS, ActionFormat, Calls, Tags
from tacit.core.errors import unknown
from tacit.core.types import ActionStyle, Observation, Task


class Wording(Protocol):
    """Contexts decide what is told; wordings decide the words.

    Four more things a wording may have, and most need none of them:

    version   raised whenever its words change; "1" where it is not said. A skill module keeps the version it learned to read.
    formats   style -> ActionFormat, where an action is not written as `core/actions.py` has it for that style
    alone     as `now`, for a prompt that shows no past turn: where `now` speaks of the turns above it
    message   as `now`, for one message of a conversation, in which every past turn has one of its own; `alone` or `now` where
              it is not said
    """

    @property
    def separator(self) -> str: ...

    def task(self, task: Task) -> str:
        """The statement of the task."""
        ...

    def turn(self, number: int, observation: Observation, action: str) -> str:
        """One past turn, for history; `number` counts from 1."""
        ...

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        """The present observation, with the admissible actions where asked."""
        ...

    def request(self, style: ActionStyle) -> str:
        """What is asked of the agent."""
        ...


class Numbered:
    """The usual words for a language model: the rules and the task, then turn by turn. A world gives its rules and, where its
    observations are not words yet, `seen`."""

    separator = "\n\n"
    rules = ""
    asked = "Your goal: "
    """what stands before the task"""
    word = "action"
    """what the agent is to give"""
    between = "\n"
    """a turn's number, what was seen, and what was done"""
    listed = "; "
    """between admissible actions"""

    def seen(self, observation: Observation) -> str:
        return observation.text

    def task(self, task: Task) -> str:
        return "\n".join(part for part in (self.rules, f"{self.asked}{task.goal}") if part)

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{self._seen(number, observation)}{self.between}You did: {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        text = self._seen(number, observation)
        if admissible and observation.actions:
            text += f"\nPossible {self.word}s: {self.listed.join(observation.actions)}"
        return text

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return f"Answer with the next {self.word} alone."
        return f"Think step by step inside <think> </think>, then give one {self.word} inside <action> </action>."

    def _seen(self, number: int, observation: Observation) -> str:
        return f"Turn {number}.{self.between}{self.seen(observation)}"


class Brief:
    """The usual words for a policy of a million parameters: a line a turn, `brief > action`, and nothing asked."""

    separator = "\n"
    then = " > "
    """between what was seen and what was done"""
    ends = ""
    """what the present line ends with, where the agent goes on"""
    listed = "; "
    """between admissible actions"""

    def brief(self, observation: Observation) -> str:
        return observation.text

    def task(self, task: Task) -> str:
        return ""

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{self.brief(observation)}{self.then}{action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        listed = f" [{self.listed.join(observation.actions)}]" if admissible and observation.actions else ""
        return f"{self.brief(observation)}{listed}{self.ends}"

    def request(self, style: ActionStyle) -> str:
        return ""


def format_of(wording: Wording, style: ActionStyle) -> ActionFormat:
    """How this wording has an action written in this style. Tags of its own for several kinds of action are several tools."""
    own: Mapping[ActionStyle, ActionFormat] = getattr(wording, "formats", {})
    tags = own.get("tags")
    if style == "tools" and "tools" not in own and isinstance(tags, Tags) and len(tags.kinds) > 1:
        return Calls(tags.kinds, keep_case=tags.keep_case)
    formats = {**FORMATS, **own}
    if style not in formats:
        raise unknown(f"style of the wording {type(wording).__name__}", style, formats)
    return formats[style]


def version_of(wording: Wording) -> str:
    return getattr(wording, "version", "1")


def tell_now(wording: Wording, number: int, observation: Observation, admissible: bool, past: bool) -> tuple[str, str]:
    """(the present observation, the same for when no past turn is shown; empty where that is no different). `past` says whether
    any is shown now."""
    alone = getattr(wording, "alone", None)
    if alone is None:
        return wording.now(number, observation, admissible), ""
    without = alone(number, observation, admissible)
    return (wording.now(number, observation, admissible) if past else without), without
