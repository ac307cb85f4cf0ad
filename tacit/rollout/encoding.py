"""Prompts and answers as tokens. A prompt that is too long loses history, oldest turn by oldest turn; the task and the
observation never give way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.core.actions import ActionFormat, answer, tools_of
from tacit.core.chat import Conversation
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import ChatTokenizer, Request, Sampler, Sampling, Scheduler, SchedulingSampler, Tokenizer
from tacit.core.types import Completion, Prompt


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of a prompt, told as a conversation where it is one."""
    chat = prompt.chat
    return tokenizer.encode_prompt(prompt.text) if chat is None else _talker(tokenizer).encode_chat(chat)


def encode_action(prompt: Prompt, action: str, form: ActionFormat, tokenizer: Tokenizer) -> np.ndarray:
    """The completion of this prompt that means `action`."""
    chat = prompt.chat
    if chat is None:
        return tokenizer.encode_completion(form.write(action))
    return _talker(tokenizer).encode_answer(chat, answer(form, action))


def encode_prompts(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The tokens of each: at once, where the tokenizer takes several texts (`encode_prompts`) and these are plain text."""
    together = getattr(tokenizer, "encode_prompts", None)
    if together is None or any(prompt.chat is not None for prompt in prompts):
        return [encode_prompt(prompt, tokenizer) for prompt in prompts]
    return together([prompt.text for prompt in prompts])


def fit_prompt(
    prompt: Prompt, tokenizer: Tokenizer, room: int, tokens: np.ndarray | None = None
) -> tuple[Prompt, np.ndarray, bool]:
    """(the prompt as it may be read, its tokens, whether they leave `room` tokens for a completion). `tokens` are the prompt's,
    where it has been encoded before."""
    tokens = encode_prompt(prompt, tokenizer) if tokens is None else tokens
    while len(tokens) + room > tokenizer.context_limit and prompt.history:
        prompt = prompt.without_oldest()
        tokens = encode_prompt(prompt, tokenizer)
    return prompt, tokens, len(tokens) + room <= tokenizer.context_limit


def check_chat_support(context: Context, tokenizer: Tokenizer) -> None:
    """Refuse a model that cannot be told conversations, or whose template writes calls that would not be read back, before
    anything is played or trained."""
    if not getattr(context, "chat", False):
        return
    form = context.format
    talk = Conversation(tools=tools_of(form), thinking=getattr(context, "thinking", False))
    prompt = Prompt("Look around.", "A room.", conversation=talk)
    encode_prompt(prompt, tokenizer)
    if talk.tools:
        action = "look" if len(talk.tools) == 1 else f"{talk.tools[0].name} look"
        written = tokenizer.decode(encode_action(prompt, action, form, tokenizer))
        if form.parse(written).action != action:
            raise TacitError(
                f"this model's chat template writes a call as {written!r}, which is not read back; use --style tags."
            )


def _talker(tokenizer: Tokenizer) -> ChatTokenizer:
    if not isinstance(tokenizer, ChatTokenizer):
        raise TacitError(f"{type(tokenizer).__name__} cannot be told conversations (it has no encode_chat); leave --chat out.")
    return tokenizer


# Schedulers for samplers that keep none: whoever can `sample` can be waited for.


def open_scheduler(sampler: Sampler, sampling: Sampling, layer: int | None, lockstep: bool = False) -> Scheduler:
    """The sampler's own scheduler where it keeps one; `lockstep` does without."""
    if isinstance(sampler, SchedulingSampler) and not lockstep:
        return sampler.open_scheduler(sampling, layer)
    return BatchScheduler(sampler, sampling, layer)


class BatchScheduler:
    """One call of `sample` for all that waits. The longest completion holds up the others."""

    def __init__(self, sampler: Sampler, sampling: Sampling, layer: int | None = None) -> None:
        self._sampler, self._sampling, self._layer = sampler, sampling, layer
        self._waiting: dict[int, Request] = {}
        self._submitted = 0

    def submit(self, request: Request) -> int:
        request_id, self._submitted = self._submitted, self._submitted + 1
        self._waiting[request_id] = request
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return []
        completions = self._sampler.sample(list(waiting.values()), self._sampling, self._layer)
        return list(zip(waiting, completions, strict=True))

    def close(self) -> None:
        self._waiting = {}
