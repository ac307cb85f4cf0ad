"""Per-slot bookkeeping on the host: requests, sampled tokens, stop conditions, noise, and cached prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from tacit.core.errors import TacitError

MAX_STOP_SETS = 64  # maximum sets of stop strings cached by `cache_stop_conditions`


class StopConditions:
    """Decides when a completion ends: at an end token or when its text contains a stop string, which may span tokens.
    Detokenizing every sequence after every step would take longer than a small model's step. So the text is checked only after
    a token whose own text contains the last character of a stop string (or part of a character); this is cached per token."""

    def __init__(self, tokenizer: Any, end_tokens: Iterable[int], stop: Sequence[str], vocabulary: int) -> None:
        self._decode: Callable[[list[int]], str]
        self._decode_all: Callable[[list[list[int]]], list[str]]
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None and not getattr(tokenizer, "clean_up_tokenization_spaces", True):
            # The Python wrapper gives the same result in twice the time.
            self._decode = partial(backend.decode, skip_special_tokens=True)
            self._decode_all = partial(backend.decode_batch, skip_special_tokens=True)
        else:
            self._decode = partial(tokenizer.decode, skip_special_tokens=True)
            self._decode_all = lambda completions: [self._decode(tokens) for tokens in completions]
        self._stop = tuple(stop)
        self._last_characters = {text[-1] for text in stop}
        self._is_end_V = np.zeros(vocabulary, dtype=bool)
        self._is_end_V[[t for t in end_tokens if t < vocabulary]] = True
        self._may_complete: dict[int, bool] = {}

    def find_candidates(self, tokens: np.ndarray) -> np.ndarray:
        """Which of these tokens may end a completion, same shape."""
        candidates = self._is_end_V[tokens]
        if self._stop:
            flat = [self._may_complete_stop(token) for token in tokens.ravel().tolist()]
            candidates = candidates | np.array(flat, dtype=bool).reshape(tokens.shape)
        return candidates

    def is_finished(self, tokens_T: np.ndarray) -> bool:
        """Whether the completion ends with its last token."""
        last = int(tokens_T[-1])
        if self._is_end_V[last]:
            return True
        if not self._may_complete_stop(last):
            return False
        text = self.decode(tokens_T)
        return any(stop in text for stop in self._stop)

    def decode(self, tokens_T: np.ndarray) -> str:
        """The text of a completion, without its end token."""
        return self._decode(self._strip_end(tokens_T))

    def decode_all(self, completions: Sequence[np.ndarray]) -> list[str]:
        """Decode several, in parallel if the tokenizer can (TOKENIZERS_PARALLELISM, RAYON_NUM_THREADS)."""
        return self._decode_all([self._strip_end(tokens_T) for tokens_T in completions])

    def _strip_end(self, tokens_T: np.ndarray) -> list[int]:
        tokens: list[int] = tokens_T.tolist()
        return tokens[:-1] if tokens and self._is_end_V[tokens[-1]] else tokens

    def _may_complete_stop(self, token: int) -> bool:
        if token not in self._may_complete:
            # Twice, because some tokenizers drop a leading space.
            text = self._decode([token, token])
            self._may_complete[token] = any(c in self._last_characters or c == "\ufffd" for c in text)
        return self._may_complete[token]


def find_end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The EOS tokens of the tokenizer and of the model's generation config."""
    tokens: set[int] = set()
    for source in (tokenizer, getattr(model, "generation_config", None)):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            tokens.update(int(i) for i in (ids if isinstance(ids, list | tuple) else [ids]))
    return frozenset(tokens)


def cache_stop_conditions(
    tokenizer: Any, end_tokens: Iterable[int], vocabulary: int
) -> Callable[[tuple[str, ...]], StopConditions]:
    """`StopConditions` by stop strings. Caches the last `MAX_STOP_SETS`, since clients of a server may send many."""
    ends = tuple(end_tokens)
    return lru_cache(MAX_STOP_SETS)(lambda stop: StopConditions(tokenizer, ends, stop, vocabulary))


# Counter-based noise: the uniform number for the n-th token of a request depends on its seed and n alone.
#
#     key = mix(seed + γ)        u(seed, n) = (top 23 bits of mix(key + (n + 1)·γ) + ½) / 2²³        in (0, 1)
#
# `mix` is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014) and γ its odd constant, so each request reads its own
# SplitMix64 stream. Integer arithmetic modulo 2⁶⁴ gives the same numbers on every machine; they are computed on the host.

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_BITS = 23  # with the added ½, the number of bits that a float32 holds exactly


def draw_uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
    """[len(seeds), count] float32: row r holds u(seeds[r], 0), u(seeds[r], 1), … Seeds are taken modulo 2⁶⁴."""
    seeds_B = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    steps_N = np.arange(1, count + 1, dtype=np.uint64) * _GAMMA
    bits_BN = _mix(_mix(seeds_B + _GAMMA)[:, None] + steps_N[None, :]) >> np.uint64(64 - _BITS)
    return (bits_BN.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-_BITS)


def _mix(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit integers in which every input bit flips about half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


MIN_PREFIX_SHARE = 0.5
"""minimum cached share of a prompt for its prefix to be reused. Growing contexts reuse nearly the whole prompt; contexts with
the last few turns share only the task text, which is not worth it"""


@dataclass(frozen=True, eq=False)
class EngineRequest:
    """A validated request, waiting or decoding."""

    request_id: int
    prompt: np.ndarray
    seed: int
    max_new_tokens: int
    episode: int | None = None  # the episode this request is a turn of, if any

    @property
    def max_length(self) -> int:
        """prompt plus completion, in tokens"""
        return len(self.prompt) + self.max_new_tokens


Occupants = tuple[np.ndarray, np.ndarray]  # (slots, request ids) of the active sequences when a decode was launched


@dataclass(frozen=True, eq=False)
class FinishedSequence:
    request: EngineRequest
    tokens_T: np.ndarray
    logprobs_T: np.ndarray
    stopped: bool  # False: it reached max_new_tokens
    hidden_D: np.ndarray | None


class CachedPrefix(NamedTuple):
    """The first `tokens` tokens of a prompt are in the KV cache of this slot, from the episode's previous turn."""

    slot: int
    tokens: int


class NonFiniteLogits(TacitError):
    """The model's logits are NaN or infinite."""


class Slots:
    """Host-side state of every slot of a decode batch. A finished sequence keeps its slot until another request takes it or the
    batch is compacted, because its KV cache may hold the prefix of the episode's next turn. Arrays are indexed by slot (_S) and
    token (_M)."""

    def __init__(self, steps_per_sync: int) -> None:
        """`steps_per_sync`: tokens recorded at once. A sequence may exceed its limit by twice this number, since steps are
        launched before the previous ones are read."""
        self._overshoot = 2 * steps_per_sync
        self.requests: list[EngineRequest] = []
        self.hidden: list[np.ndarray | None] = []  # hidden states of the prompts, for the completions
        self.active_S = np.zeros(0, dtype=bool)
        self._request_ids_S = np.zeros(0, dtype=np.int64)
        self.lengths_S = np.zeros(0, dtype=np.int64)  # tokens recorded
        self._launched_S = np.zeros(0, dtype=np.int64)
        """tokens launched on the device, including those not recorded yet"""
        self._limits_S = np.zeros(0, dtype=np.int64)
        self.episodes_S = np.zeros(0, dtype=np.int64)  # -1: no episode, or cached with older weights
        self._prompt_lengths_S = np.zeros(0, dtype=np.int64)
        self._noise_SM = np.zeros((0, 0), dtype=np.float32)
        self.tokens_SM = np.zeros((0, 0), dtype=np.int64)
        self._logprobs_SM = np.zeros((0, 0), dtype=np.float32)

    def __len__(self) -> int:
        """Slots in use, finished sequences included."""
        return len(self.requests)

    @property
    def num_active(self) -> int:
        return int(self.active_S.sum())

    @property
    def active_requests(self) -> list[EngineRequest]:
        return [self.requests[slot] for slot in np.flatnonzero(self.active_S)]

    @property
    def remaining_N(self) -> np.ndarray:
        """tokens of each active sequence that are not launched yet, up to its limit"""
        return (self._limits_S - self._launched_S)[self.active_S]

    @property
    def max_length(self) -> int:
        """length of the longest active sequence, including launched tokens"""
        return int((self._prompt_lengths_S + self._launched_S)[self.active_S].max())

    @property
    def has_episodes(self) -> bool:
        return bool((self.episodes_S >= 0).any())

    def find_previous_turns(self, request: EngineRequest) -> list[int]:
        """Slots of finished sequences of the same episode."""
        if request.episode is None:
            return []
        return np.flatnonzero(~self.active_S & (self.episodes_S == request.episode)).tolist()

    def find_cached_prefix(self, request: EngineRequest) -> CachedPrefix | None:
        """The prompt's prefix in the KV cache, if the previous turn is cached and covers at least MIN_PREFIX_SHARE of the
        prompt. The last token of a completion is not cached, because it was never an input."""
        for slot in self.find_previous_turns(request):
            sampled = self.tokens_SM[slot, : max(0, int(self.lengths_S[slot]) - 1)]
            cached = np.concatenate([self.requests[slot].prompt, sampled])[: len(request.prompt) - 1]
            different = np.flatnonzero(cached != request.prompt[: len(cached)])
            shared = int(different[0]) if len(different) else len(cached)
            if shared >= MIN_PREFIX_SHARE * len(request.prompt):
                return CachedPrefix(slot, shared)
        return None

    def assign(
        self, requests: Sequence[EngineRequest], prefixes: Sequence[CachedPrefix | None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give each request a slot: that of its cached prefix, else a finished sequence's, else a new one. Returns the slots
        and the noise of each first token."""
        prefixes = prefixes or [None] * len(requests)
        slots_N = np.array([-1 if prefix is None else prefix.slot for prefix in prefixes])
        needs_slot_N = slots_N < 0
        needed = int(needs_slot_N.sum())
        free_N = np.setdiff1d(np.flatnonzero(~self.active_S), slots_N)[:needed]
        more = needed - len(free_N)
        slots_N[needs_slot_N] = np.append(free_N, np.arange(len(self), len(self) + more))
        self.requests += [requests[0]] * more
        self.hidden += [None] * more
        limits_N = np.array([request.max_new_tokens for request in requests])
        self._resize(len(self), int(limits_N.max()) + self._overshoot)
        for slot, request in zip(slots_N, requests, strict=True):
            self.requests[slot] = request
        self.active_S[slots_N] = True
        self.lengths_S[slots_N] = 0
        self._limits_S[slots_N] = limits_N
        self._request_ids_S[slots_N] = [request.request_id for request in requests]
        self._launched_S[slots_N] = 1
        self._prompt_lengths_S[slots_N] = [len(request.prompt) for request in requests]
        self.episodes_S[slots_N] = [-1 if request.episode is None else request.episode for request in requests]
        self._noise_SM[slots_N] = draw_uniforms([request.seed for request in requests], self._noise_SM.shape[1])
        return slots_N, self._noise_SM[slots_N, 0]

    def launch(self, steps: int) -> tuple[np.ndarray, Occupants]:
        """Count `steps` more tokens as launched. Returns their noise [slots, steps] and the slots' current occupants."""
        noise_SK = np.take_along_axis(self._noise_SM, self._launched_S[:, None] + np.arange(steps), axis=1)
        slots_N = np.flatnonzero(self.active_S)
        self._launched_S[slots_N] += steps
        return noise_SK, (slots_N, self._request_ids_S[slots_N])

    def find_still_active(self, occupants: Occupants) -> np.ndarray:
        """The slots whose request has not finished since the launch."""
        slots_N, request_ids_N = occupants
        return slots_N[self.active_S[slots_N] & (self._request_ids_S[slots_N] == request_ids_N)]

    def record(
        self, slots_N: np.ndarray, tokens_NK: np.ndarray, logprobs_NK: np.ndarray, stops: StopConditions
    ) -> list[FinishedSequence]:
        """Append the next K tokens of these slots. Returns the sequences that finish."""
        if not np.isfinite(logprobs_NK).all():
            raise NonFiniteLogits(
                "the model's logits are not finite: its weights have diverged or overflow its precision. "
                "Resume from an earlier checkpoint with a lower learning rate."
            )
        starts_N = self.lengths_S[slots_N]
        columns_NK = starts_N[:, None] + np.arange(tokens_NK.shape[1])
        self.tokens_SM[slots_N[:, None], columns_NK] = tokens_NK
        self._logprobs_SM[slots_N[:, None], columns_NK] = logprobs_NK
        ends_N = np.minimum(starts_N + tokens_NK.shape[1], self._limits_S[slots_N])
        self.lengths_S[slots_N] = ends_N
        candidate_NK = stops.find_candidates(tokens_NK)
        may_stop_N = np.logical_or.reduce(candidate_NK, axis=1)
        at_limit_N = ends_N == self._limits_S[slots_N]
        finished, ended = [], []
        for i in np.flatnonzero(may_stop_N | at_limit_N):
            slot, length = int(slots_N[i]), int(ends_N[i])
            stopped = False
            for k in np.flatnonzero(candidate_NK[i, : length - starts_N[i]]):
                end = int(starts_N[i]) + int(k) + 1
                if stops.is_finished(self.tokens_SM[slot, :end]):
                    length, stopped = end, True
                    break
            if stopped or at_limit_N[i]:
                tokens_T = self.tokens_SM[slot, :length].copy()
                logprobs_T = self._logprobs_SM[slot, :length].copy()
                finished.append(FinishedSequence(self.requests[slot], tokens_T, logprobs_T, stopped, self.hidden[slot]))
                ended.append(slot)
        self.active_S[ended] = False
        self._launched_S[ended] = 0
        return finished

    def compact(self, kept: Sequence[int] = ()) -> np.ndarray:
        """Drop finished slots except `kept`; the last remaining slots fill the gaps. Returns `order`: slot i now holds the
        contents of slot order[i]."""
        keep_S = self.active_S.copy()
        keep_S[list(kept)] = True
        alive = np.flatnonzero(keep_S)
        order = np.arange(len(alive))
        gaps = np.setdiff1d(order, alive)
        order[gaps] = alive[len(alive) - len(gaps) :]
        self.requests = [self.requests[slot] for slot in order]
        self.hidden = [self.hidden[slot] for slot in order]
        to = np.flatnonzero(order != np.arange(len(order)))
        for name in _SLOT_ARRAYS:
            values = getattr(self, name)
            values[to] = values[order[to]]
            setattr(self, name, values[: len(order)])
        return order

    def _resize(self, slots: int, tokens: int) -> None:
        for name in _SLOT_ARRAYS:
            old = getattr(self, name)
            shape = (slots, max(tokens, old.shape[1])) if old.ndim == 2 else (slots,)
            if shape != old.shape:
                new = np.zeros(shape, old.dtype)
                new[tuple(slice(n) for n in old.shape)] = old
                setattr(self, name, new)


_SLOT_ARRAYS = (
    "active_S", "_request_ids_S", "lengths_S", "_launched_S", "_limits_S", "_prompt_lengths_S", "episodes_S",
    "_noise_SM", "tokens_SM", "_logprobs_SM",
)  # fmt: skip
