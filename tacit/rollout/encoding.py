"""Encoding prompts and actions, truncating prompts, and a scheduler for samplers without one.

Truncation drops history, oldest turn first. The task and the current observation are never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.core.actions import ActionFormat
from tacit.core.chat import Conversation
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import (
    ChatTokenizer,
    Request,
    Sampler,
    Sampling,
    SamplingPolicy,
    Scheduler,
    SchedulingSampler,
    Tokenizer,
)
from tacit.core.types import Completion, HiddenState, Prompt


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer) -> np.ndarray:
    """The prompt's tokens, with the chat template if it is a conversation."""
    chat = prompt.chat
    return tokenizer.encode_prompt(prompt.text) if chat is None else _chat_tokenizer(tokenizer).encode_chat(chat)


def encode_action(prompt: Prompt, action: str, form: ActionFormat, tokenizer: Tokenizer) -> np.ndarray:
    """Tokens of the completion that writes `action` after this prompt, as for imitation."""
    chat = prompt.chat
    if chat is None:
        return tokenizer.encode_completion(form.write(action))
    return _chat_tokenizer(tokenizer).encode_answer(chat, form.message(action))


def encode_prompts(prompts: Sequence[Prompt], policy: SamplingPolicy) -> list[np.ndarray]:
    """The tokens of each prompt; plain prompts are encoded in one batch."""
    if any(prompt.chat is not None for prompt in prompts):
        return [encode_prompt(prompt, policy) for prompt in prompts]
    return policy.encode_prompts([prompt.text for prompt in prompts])


def fit_prompt(
    prompt: Prompt, tokenizer: Tokenizer, room: int, tokens: np.ndarray | None = None
) -> tuple[Prompt, np.ndarray, bool]:
    """Drop the oldest turns until `room` completion tokens fit in the context. Returns (prompt, tokens, whether it fits).

    `tokens`: the prompt's tokens, if already encoded.
    """
    tokens = encode_prompt(prompt, tokenizer) if tokens is None else tokens
    while len(tokens) + room > tokenizer.context_limit and prompt.history:
        prompt = prompt.without_oldest()
        tokens = encode_prompt(prompt, tokenizer)
    return prompt, tokens, len(tokens) + room <= tokenizer.context_limit


def check_chat_support(context: Context, tokenizer: Tokenizer) -> None:
    """Raise if the context needs a chat template and the model has none, or if its tool calls do not parse back."""
    if not context.chat:
        return
    form = context.format
    chat = Conversation(tools=form.tools, thinking=context.thinking)
    prompt = Prompt("Look around.", "A room.", conversation=chat)
    encode_prompt(prompt, tokenizer)
    if chat.tools:
        action = "look" if len(chat.tools) == 1 else f"{chat.tools[0].name} look"
        written = tokenizer.decode(encode_action(prompt, action, form, tokenizer))
        if form.parse(written).action != form.parse(form.write(action)).action:
            raise TacitError(
                f"this model's chat template writes a tool call as {written!r}, which cannot be parsed back; use --style tags."
            )


def _chat_tokenizer(tokenizer: Tokenizer) -> ChatTokenizer:
    if not isinstance(tokenizer, ChatTokenizer):
        raise TacitError(f"{type(tokenizer).__name__} cannot encode conversations (it has no encode_chat); leave out --chat.")
    return tokenizer


def open_scheduler(sampler: Sampler, sampling: Sampling, hidden: HiddenState | None, lockstep: bool = False) -> Scheduler:
    """The sampler's own scheduler, or a `BatchScheduler` if it has none or `lockstep` is set."""
    if isinstance(sampler, SchedulingSampler) and not lockstep:
        return sampler.open_scheduler(sampling, hidden)
    return BatchScheduler(sampler, sampling, hidden)


class BatchScheduler:
    """A scheduler for any sampler: one `sample` call for all pending requests, so the longest completion delays the rest."""

    def __init__(self, sampler: Sampler, sampling: Sampling, hidden: HiddenState | None = None) -> None:
        self._sampler, self._sampling, self._hidden = sampler, sampling, hidden
        self._pending: dict[int, Request] = {}
        self._submitted = 0

    def submit(self, request: Request) -> int:
        request_id, self._submitted = self._submitted, self._submitted + 1
        self._pending[request_id] = request
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        pending, self._pending = self._pending, {}
        if not pending:
            return []
        completions = self._sampler.sample(list(pending.values()), self._sampling, self._hidden)
        return list(zip(pending, completions, strict=True))

    def close(self) -> None:
        self._pending = {}
