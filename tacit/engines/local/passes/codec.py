"""Text to tokens and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tacit.core.chat import Call, Chat, Message
from tacit.core.errors import TacitError
from tacit.engines.local.passes.templates import ChatTemplate


@dataclass(frozen=True, eq=False)
class TextCodec:
    """Text to tokens and back: one user message under the chat template where the tokenizer has one, else plain text; or a
    whole conversation under it.

    What a text says is data: a control token spelled out in it, in a note or on a web page, is read as its letters."""

    tokenizer: Any
    context_limit: int

    @property
    def end(self) -> int:
        """the token that ends a completion"""
        return int(self.tokenizer.eos_token_id)

    @property
    def pad(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.end if pad is None else int(pad)

    def encode_prompt(self, text: str) -> np.ndarray:
        return self.encode_prompts([text])[0]

    def encode_prompts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each as it would be alone; the tokenizer goes through several at once, on all CPUs."""
        if not texts:
            return []
        texts = [self.spelled(text) for text in texts]
        if self.tokenizer.chat_template:
            # Some templates open a thought of their own unless told not to; agents here think, if at all, in their own tags.
            rendered = self.tokenizer.apply_chat_template(
                [[{"role": "user", "content": text}] for text in texts],
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=False,
            )
            return self._encode_all(rendered, add_special_tokens=False)
        # Some tokenizers close every text; a prompt that already ended has nothing to continue.
        return [
            tokens[:-1] if len(tokens) > 1 and tokens[-1] == self.end else tokens
            for tokens in self._encode_all(texts, add_special_tokens=True)
        ]

    def encode_completion(self, text: str) -> np.ndarray:
        return np.append(self._encode(self.spelled(text), add_special_tokens=False), np.int64(self.end))

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer)

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self._encode(self.template.prompt(self._spelled(chat)), add_special_tokens=False)

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        """Up to the end token that the template closes a message with; with one, where it closes it otherwise."""
        (answer,) = self._spelled(Chat((answer,))).messages
        written = self.template.answer(self._spelled(chat), answer)
        tokens = self._encode(written, add_special_tokens=False)
        ends = np.flatnonzero(tokens == self.end)
        return tokens[: ends[0] + 1] if len(ends) else self.encode_completion(written.rstrip())

    def spelled(self, text: str) -> str:
        """The same, with every control token that is written out in it parted by a space: `<|end|>` becomes `< |end|>`."""
        if not any(mark in text for mark in self._marks):  # far quicker than the pattern, and nearly always enough
            return text
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def _spelled(self, chat: Chat) -> Chat:
        def message(told: Message) -> Message:
            call = told.call and Call(told.call.name, {k: self.spelled(v) for k, v in told.call.arguments.items()})
            return Message(told.role, self.spelled(told.content), call)

        return replace(chat, messages=tuple(message(told) for told in chat.messages))

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._tokens, key=len, reverse=True))))

    @cached_property
    def _marks(self) -> frozenset[str]:
        return frozenset(token[:2] for token in self._tokens)

    @cached_property
    def _tokens(self) -> frozenset[str]:
        reserved = (token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        return frozenset((*self.tokenizer.all_special_tokens, *reserved))

    def decode(self, tokens: np.ndarray) -> str:
        ids = np.asarray(tokens).tolist()
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _encode(self, text: str, add_special_tokens: bool) -> np.ndarray:
        return self._encode_all([text], add_special_tokens)[0]

    def _encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[np.ndarray]:
        if self._bare is not None:
            found = self._bare.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
            return [np.asarray(one.ids, dtype=np.int64) for one in found]
        # Not verbose: whoever feeds the model refuses what is too long; others only count.
        encoded = self.tokenizer(list(texts), add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return [np.asarray(ids, dtype=np.int64) for ids in encoded]

    @cached_property
    def _bare(self) -> Any:
        """The tokenizer itself, where it may be asked: what is around it takes half as long again, for masks and offsets that
        nobody reads here, and takes back what a file may have set of cutting and filling up."""
        own = getattr(self.tokenizer, "backend_tokenizer", None)
        return own if own is not None and own.truncation is None and own.padding is None else None


def codec_for(tokenizer: Any, config: Any) -> TextCodec:
    if tokenizer.eos_token_id is None:
        raise TacitError("this model's tokenizer has no end token (eos_token), so a completion could never end; set one.")
    limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    known = [int(limit) for limit in limits if limit and limit < 10**9]
    return TextCodec(tokenizer, min(known) if known else 2048)
