"""The prompt is the task, the last turn, a state block, and the current observation: bounded, however long the episode.

    xₜ = Format(g, oₜ, qₜ, bₜ),   |xₜ| ≤ B                 (constant context, Eqs. 2–3)

g  the task                                   Prompt.task
qₜ the last turn, (oₜ₋₁, aₜ₋₁)                Prompt.history, at most one line
bₜ the tracker's state block                  Prompt.now, before the observation
oₜ the current observation                    Prompt.now

The paper's baselines are `History` with one turn (ReAct-1step) and with all turns (ReAct-full), both in the style `tags`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.core.actions import ActionFormat
from tacit.core.method import Context, PromptReader
from tacit.core.types import ActionStyle, Condition, Task
from tacit.core.world import Tracker, Wording
from tacit.prompts.conversation import build_format
from tacit.prompts.history import TurnReader


@dataclass(frozen=True)
class StateBlock(Context):
    """`block=False` and `one_step=False` leave out bₜ and qₜ. The tracker's signals are measured either way."""

    wording: Wording = field()
    tracker: Tracker = field()
    block: bool = True
    one_step: bool = True
    admissible: bool = False
    style: ActionStyle = "bare"
    bound: int = 4000  # B, in characters, without a condition's note, which has its own bound
    chat: bool = False
    """chat messages: the last turn is a message and its answer, block and observation are the current message"""
    thinking: bool = False

    @property
    def format(self) -> ActionFormat:
        return build_format(self.wording, self.style, self.thinking)

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        return TurnReader(self, task, condition, int(self.one_step))
