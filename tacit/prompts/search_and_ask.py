"""A context in which the agent may query the experience bank during an episode (search_and_ask of Complementary RL).

    <action>search_and_ask the fridge is open and the egg is not in it</action>          styles tags and bare

The question does not reach the world, the history or the tracker. The answer is a note in the following prompts, until the
next question. An episode has a limited number of questions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from tacit.core.actions import ActionFormat, AfterThought, Calls, Tags
from tacit.core.hindsight import ENV, ERROR, PROGRESS
from tacit.core.method import Pending, PromptReader, WrappedContext
from tacit.core.types import Condition, Observation, Prompt, Task, Transition
from tacit.prompts.history import frame_note

ASK = "search_and_ask"
ASKED, ENTRY = "asked", "asked_entry"  # signals of a turn with a question: 1, and the id of the entry found, if any
LONGEST = 500  # maximum characters of a question
NOTHING = "Nothing is known about that."
NONE_LEFT = "You have no questions left."
_QUESTION = re.compile(rf"\s*{ASK}(?![\w-])[\s:=(\[\"']*(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class SearchResult:
    """The answer to a question, and the bank entry it came from."""

    text: str = ""
    entry: int | None = None


class PendingAnswer(Protocol):
    def done(self) -> bool: ...

    def result(self) -> SearchResult: ...


def parse_question(action: str) -> str | None:
    """The question as one line of bounded length; None if the action is not a question.

    >>> parse_question("search_and_ask: where do eggs lie?"), parse_question("go to fridge 1")
    ('where do eggs lie?', None)
    """
    match = _QUESTION.fullmatch(action)
    if match is None:
        return None
    plain = "".join(c if c.isprintable() else " " for c in match.group(1)[: 4 * LONGEST])
    return " ".join(plain.split()).rstrip(")]\"'")[:LONGEST].strip()


@dataclass(frozen=True)
class SearchAndAsk(WrappedContext):
    """Wraps a context; episodes with one of `conditions` may ask questions."""

    ask: Callable[[str, Task], PendingAnswer] = field(repr=False, compare=False)
    conditions: tuple[str, ...] = ()
    brief: bool = False  # short invitation, for tiny policies
    most: int = 0  # maximum questions per episode; 0 is unlimited

    @property
    def format(self) -> ActionFormat:
        return asking_format(self.inner.format)

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        inner = self.inner.begin(task, condition)
        return _AskingReader(self, inner, task) if condition.name in self.conditions else inner

    @property
    def invitation(self) -> str:
        if self.brief:
            return f"ask: {ASK} ..."
        form, example = self.format, f"{ASK} your question"
        inside = form.answer if isinstance(form, AfterThought) else form
        written = inside.write_past(example) if isinstance(inside, Tags) else example
        often = f" You may ask {'once' if self.most == 1 else f'{self.most} times'}." if self.most else ""
        return (
            f"At any turn you may ask instead of acting: `{written}` searches the experience of earlier episodes, and the "
            f"answer is shown to you next. Say where you stand and what stops you.{often}"
        )


def asking_format(form: ActionFormat) -> ActionFormat:
    """The format with a further tag or tool for questions, if it has several kinds; else unchanged."""
    if isinstance(form, AfterThought):
        return replace(form, answer=asking_format(form.answer))
    return replace(form, kinds=(*form.kinds, ASK)) if isinstance(form, Tags | Calls) and len(form.kinds) > 1 else form


class _AskingReader(PromptReader):
    def __init__(self, context: SearchAndAsk, inner: PromptReader, task: Task) -> None:
        self._context, self._inner, self._task = context, inner, task
        self._last = Transition(Observation(""))
        self._note = ""
        self._asked = 0

    def read(self, observation: Observation) -> Prompt:
        self._last = replace(self._last, observation=observation)
        prompt = self._inner.read(observation)

        def beside(*parts: str) -> str:
            return prompt.separator.join(filter(None, parts))

        invitation = "" if self._is_out else self._context.invitation
        return prompt.with_notes(beside(prompt.task_note, invitation), beside(prompt.step_note, self._note))

    @property
    def _is_out(self) -> bool:
        return 0 < self._context.most <= self._asked

    def ask(self, action: str) -> Pending | None:
        question = parse_question(action)
        if question is None:
            return None
        if self._is_out:
            return _PendingTransition(self, question, None, NONE_LEFT)
        self._asked += 1
        return _PendingTransition(self, question, self._context.ask(question, self._task) if question else None)

    def record_answer(self, question: str, result: SearchResult, otherwise: str) -> Transition:
        """Store the answer for the next prompts. The transition repeats the world's last state."""
        answer = result.text or otherwise
        self._note = frame_note(f"{question}\n{answer}")
        entry_signal = {} if result.entry is None else {ENTRY: float(result.entry)}
        # Reward terms expect both sums on every step.
        signals = {PROGRESS: 0.0, ERROR: 0.0, ENV: 0.0, ASKED: 1.0, **entry_signal}
        world = replace(self._last, done=False, success=False, effective=True, reward=0.0)
        return replace(world, label=ASKED, signals=signals, answer=answer)

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        if parse_question(action) is not None:
            return {}
        self._last = transition
        return self._inner.record(action, transition, raw_text)


@dataclass(frozen=True)
class _PendingTransition:
    reader: _AskingReader
    question: str
    answer: PendingAnswer | None
    otherwise: str = NOTHING  # the answer if nothing was found or the question was empty

    def done(self) -> bool:
        return self.answer is None or self.answer.done()

    def result(self) -> Transition:
        result = self.answer.result() if self.answer is not None else SearchResult()
        return self.reader.record_answer(self.question, result, self.otherwise)
