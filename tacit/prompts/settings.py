"""Prompt settings: the `[prompt]` table of a recipe, and the context it describes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from tacit.core.bounds import AtLeastOne, Basic, Bound
from tacit.core.errors import TacitError
from tacit.core.method import Base, Context
from tacit.core.types import ActionStyle
from tacit.core.world import FULL_BLOCK, Environment
from tacit.prompts.history import History, StateBlock

Turns = Annotated[int, Bound(lambda v: v >= -1, "must be a number of turns, or -1 for all turns")]


@dataclass(frozen=True)
class PromptSettings:
    """A method sets the defaults of its paper: `prompt: PromptSettings = PromptSettings(history=1)`."""

    history: Basic[Turns | None] = None
    """past turns in the prompt; -1 is all; unset, the world's default (2; 4 in search)"""
    state_block: bool = False
    """show the tracker's state block and at most one past turn (`history` 1 or 0) instead of a longer history"""
    block: str = FULL_BLOCK
    """form of the state block: full, or another the world has (alfworld: text, no_places, paper; cooking: text, no_places)"""
    bound: AtLeastOne = 4000
    """maximum characters of a prompt with a state block; a longer one stops the run with an error"""
    wording: Basic[str] = "full"
    """wording of prompts: full, for language models, or terse, for tiny policies"""
    style: Basic[ActionStyle] = "tags"
    """how actions are written: tags (<think>…</think><action>…</action>), bare, or tools (calls in the model's template)"""
    chat: bool = False
    """write prompts as conversations in the model's chat template, past turns as messages; always on with tools"""
    thinking: bool = False
    """in conversations: turn on the reasoning of the model's template; it is kept apart from the action"""
    admissible: bool = True
    """list the admissible actions in the prompt, if the world has them"""

    def fit_to_model(self, base: Base, explicit: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        """(settings for this model, notes on what was changed). `explicit` names the settings that the user gave; they stay.

        A model of a few million parameters cannot read prompts written for language models: it gets the terse wording without
        lists of actions, and bare actions. A model with a chat template gets `chat`.
        """
        if base.chat_template and "chat" not in explicit and not self.chat:
            note = f"{base.model} has a chat template, so chat = true; --no-chat shows the episode as one message"
            return replace(self, chat=True), (note,)
        wanted: dict[str, Any] = {"wording": "terse", "style": "bare", "admissible": False} if base.small else {}
        changes = {name: value for name, value in wanted.items() if name not in explicit and getattr(self, name) != value}
        if not changes:
            return self, ()
        listed = ", ".join(f"{name} = {str(value).lower()}" for name, value in changes.items())
        note = f"{base.model} is too small for the default prompts; unless you set them, {listed}"
        return replace(self, **changes), (note,)

    def build_context(self, world: Environment) -> Context:
        if self.state_block:
            return self.build_constant_context(world)
        turns = self.past_turns(world)
        return History(world.wording(self.wording), turns, self.admissible, self.style, self._uses_chat(), self.thinking)

    def past_turns(self, world: Environment) -> int | None:
        """Number of past turns in the prompt in this world; None is all of them."""
        turns = world.history if self.history is None else self.history
        return None if turns < 0 else turns

    def build_constant_context(self, world: Environment, block: bool = True) -> Context:
        """The current observation, at most one past turn and, with `block`, the tracker's state block."""
        turns = self.past_turns(world)
        if turns not in (0, 1):
            length = -1 if turns is None else turns
            raise TacitError(
                f"history = {length}: a prompt with a state block shows one past turn (1) or none (0). For more, drop the "
                f"state block: `--method grpo --history {length}`."
            )
        options = (self.admissible, self.style, self.bound, self._uses_chat(), self.thinking)
        return StateBlock(world.wording(self.wording), world.tracker_of(self.block), block, turns == 1, *options)

    def _uses_chat(self) -> bool:
        chat = self.chat or self.style == "tools"
        if self.thinking and not chat:
            raise TacitError("thinking = true needs the model's chat template; add --chat.")
        return chat
