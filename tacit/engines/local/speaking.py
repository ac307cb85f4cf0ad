"""The side of a policy that its codec and its scorer have alone, wherever its weights are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.core.chat import Chat, Message
from tacit.core.protocols import Scorer
from tacit.engines.local.passes.codec import TextCodec


class Speaking:
    codec: TextCodec
    _scorer: Scorer

    @property
    def context_limit(self) -> int:
        return self.codec.context_limit

    def encode_prompt(self, text: str) -> np.ndarray:
        return self.codec.encode_prompt(text)

    def encode_prompts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_prompt` of each, on several CPUs where there are several."""
        return self.codec.encode_prompts(texts)

    def encode_completion(self, text: str) -> np.ndarray:
        return self.codec.encode_completion(text)

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self.codec.encode_chat(chat)

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        return self.codec.encode_answer(chat, answer)

    def decode(self, tokens: np.ndarray) -> str:
        return self.codec.decode(tokens)

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        return self._scorer.logprobs(prompts, completions, temperature)

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._scorer.distributions(prompts, completions, top_k)
