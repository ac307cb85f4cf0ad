"""Making a prompt fit: history gives way, oldest turn by oldest turn; the task and the observation never do."""

from __future__ import annotations

import numpy as np

from tacit.core.protocols import Tokenizer
from tacit.core.types import Prompt


def fit(prompt: Prompt, tokenizer: Tokenizer, room: int) -> tuple[Prompt, np.ndarray, bool]:
    """(the prompt as it may be read, its tokens, whether they leave `room` tokens for a completion)."""
    tokens = tokenizer.encode_prompt(prompt.text)
    while len(tokens) + room > tokenizer.context_limit and prompt.history:
        prompt = prompt.without_oldest()
        tokens = tokenizer.encode_prompt(prompt.text)
    return prompt, tokens, len(tokens) + room <= tokenizer.context_limit
