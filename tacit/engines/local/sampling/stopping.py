"""When a completion is over: an end token, a stop string in its text, or its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

KEPT = 64
"""sets of stop strings whose ends are remembered, each by a bit for every token of the vocabulary"""


class Stops:
    """Finds the end of completions. Stop strings may span tokens, so the decoded text is what is searched.

    Decoding every row after every token would cost more than a small model; but a stop string can only appear with a
    token whose own text holds the string's last character (or part of a character), and those are remembered.
    """

    def __init__(self, tokenizer: Any, end_tokens: Iterable[int], stop: Sequence[str], vocabulary: int) -> None:
        self._decode, self._decode_all = _decoders(tokenizer)
        self._stop = tuple(stop)
        self._last_characters = {text[-1] for text in stop}
        self._is_end_V = np.zeros(vocabulary, dtype=bool)
        self._is_end_V[[t for t in end_tokens if t < vocabulary]] = True
        self._may_complete: dict[int, bool] = {}

    def interesting(self, tokens: np.ndarray) -> np.ndarray:
        """Which of these tokens may end a completion, same shape."""
        found = self._is_end_V[tokens]
        if self._stop:
            flat = [self._completes(token) for token in tokens.ravel().tolist()]
            found = found | np.array(flat, dtype=bool).reshape(tokens.shape)
        return found

    def ends(self, tokens_T: np.ndarray) -> bool:
        """True where the completion is over with its last token."""
        return bool(self._is_end_V[tokens_T[-1]]) or (
            self._completes(int(tokens_T[-1])) and any(stop in self.text(tokens_T) for stop in self._stop)
        )

    def text(self, tokens_T: np.ndarray) -> str:
        """The text of a completion, without the token that ended it."""
        return self._decode(self._said(tokens_T))

    def texts(self, completions: Sequence[np.ndarray]) -> list[str]:
        """Of several, on as many CPUs as the tokenizer takes (TOKENIZERS_PARALLELISM, RAYON_NUM_THREADS)."""
        return self._decode_all([self._said(tokens_T) for tokens_T in completions])

    def _said(self, tokens_T: np.ndarray) -> list[int]:
        said: list[int] = tokens_T.tolist()
        return said[:-1] if said and self._is_end_V[said[-1]] else said

    def _completes(self, token: int) -> bool:
        known = self._may_complete.get(token)
        if known is None:
            # twice, because some tokenizers drop a space that begins the text
            text = self._decode([token, token])
            known = self._may_complete[token] = any(c in self._last_characters or c == "�" for c in text)
        return known


def _decoders(tokenizer: Any) -> tuple[Callable[[list[int]], str], Callable[[list[list[int]]], list[str]]]:
    """Text without control tokens, of one and of several: from the tokenizer itself, where what is around it would change
    nothing and take twice as long."""
    own = getattr(tokenizer, "backend_tokenizer", None)
    if own is not None and not getattr(tokenizer, "clean_up_tokenization_spaces", True):
        return partial(own.decode, skip_special_tokens=True), partial(own.decode_batch, skip_special_tokens=True)
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    return decode, lambda completions: [decode(tokens) for tokens in completions]


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a completion: the tokenizer's and those of the model's generation settings."""
    found: set[int] = set()
    for source in (tokenizer, getattr(model, "generation_config", None)):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            found.update(int(i) for i in (ids if isinstance(ids, list | tuple) else [ids]))
    return frozenset(found)


class KnownStops:
    """The `Stops` of a model, by their stop strings: the last `KEPT` sets, since whoever serves is asked for ever new ones."""

    def __init__(self, tokenizer: Any, end_tokens: Iterable[int], vocabulary: int) -> None:
        self._tokenizer, self._end_tokens, self._vocabulary = tokenizer, tuple(end_tokens), vocabulary
        self._known: dict[tuple[str, ...], Stops] = {}

    def __call__(self, stop: tuple[str, ...]) -> Stops:
        if stop not in self._known:
            if len(self._known) >= KEPT:
                del self._known[next(iter(self._known))]
            self._known[stop] = Stops(self._tokenizer, self._end_tokens, stop, self._vocabulary)
        return self._known[stop]
