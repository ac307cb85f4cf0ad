"""Tokens for those who have none of their own: a token is a byte of the text. A conversation is a text of its own kind, marked
by a first token that is no byte."""

from __future__ import annotations

import numpy as np

from tacit.core.chat import Chat, Message

TALK = 256
"""what follows is a conversation"""


class ByteTokens:
    """The tokenizer of a player that is not spoken to in tokens: an endpoint, an expert, a person."""

    context_limit = 1 << 40

    def encode_prompt(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    encode_completion = encode_prompt

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return np.concatenate([np.array([TALK], np.int64), self.encode_prompt(chat.dumps())])

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        return self.encode_completion(answer.call.text() if answer.call else answer.content)

    def decode(self, tokens: np.ndarray) -> str:
        return bytes(tokens[tokens != TALK].astype(np.uint8)).decode()

    def chat_in(self, tokens: np.ndarray) -> Chat | None:
        """The conversation that was encoded; None where it was a text."""
        return Chat.loads(self.decode(tokens)) if len(tokens) and tokens[0] == TALK else None
