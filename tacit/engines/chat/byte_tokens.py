"""Tokens for those who have none of their own: a token is a byte of the text."""

from __future__ import annotations

import numpy as np


class ByteTokens:
    """The tokenizer of a player that is not spoken to in tokens: an endpoint, an expert, a person."""

    context_limit = 1 << 40

    def encode_prompt(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    encode_completion = encode_prompt

    def decode(self, tokens: np.ndarray) -> str:
        return bytes(tokens.astype(np.uint8)).decode()
