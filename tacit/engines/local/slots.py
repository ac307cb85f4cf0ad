"""What the host knows of the rows at a table, by place: whose they are, what they have written, and how far they may go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tacit.core.errors import TacitError

# When a completion is over: an end token, a stop string in its text, or its limit.

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


# Randomness as a function: the uniform number behind the n-th token of a request depends on its seed and n alone.
#
#     key = mix(seed + γ)        u(seed, n) = (top 23 bits of mix(key + (n + 1)·γ) + ½) / 2²³        in (0, 1)
#
# `mix` is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) and γ its odd constant, so each request reads its own
# SplitMix64 stream from a scrambled start. Integer arithmetic modulo 2⁶⁴ is the same on every machine; the numbers are
# computed on the host and handed to whatever device draws the tokens.

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_BITS = 23
"""with the added half, as many as a float32 holds exactly"""


def uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
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


WORTH_KEEPING = 0.5
"""of a prompt: the least that is read on from where it lies. Of a context that only grows it is nearly all; of one that tells
the last few turns it is the task, a small part"""


@dataclass(frozen=True, eq=False)
class Job:
    """One request on its way."""

    request_id: int
    prompt: np.ndarray
    seed: int
    limit: int
    whose: str | None = None
    """the adapter that writes it; None: the one that is active"""
    episode: int | None = None
    """the episode that it is a turn of, if any"""

    @property
    def longest(self) -> int:
        """prompt and completion, in tokens"""
        return len(self.prompt) + self.limit


Asked = tuple[np.ndarray, np.ndarray]
"""places, and the request id of the row that sat at each when its next tokens were asked for"""


@dataclass(frozen=True, eq=False)
class Over:
    """A row that has come to its end."""

    job: Job
    tokens_T: np.ndarray
    logprobs_T: np.ndarray
    stopped: bool
    """False where it ran into its limit"""
    hidden_D: np.ndarray | None


@dataclass(frozen=True)
class Known:
    """The beginning of a prompt that lies in the cache, where the turn before it was written."""

    place: int
    tokens: int


class NotFinite(TacitError):
    """The model's logits are not numbers."""


class Rows:
    def __init__(self, check_every: int) -> None:
        """`check_every`: the most tokens recorded at once. A row runs on so far beyond its limit, and one that is over as far
        again where the others go on before they are read."""
        self._beyond = 2 * check_every
        self.jobs: list[Job] = []
        """by place; a row that is over keeps its place until another has it, or the rows move together"""
        self._hidden: list[np.ndarray | None] = []
        self.under_way_P = np.zeros(0, dtype=bool)
        self._reading_P = np.zeros(0, dtype=bool)
        """of those under way, whose prompt is not read yet, and who do not write"""
        self._request_ids_P = np.zeros(0, dtype=np.int64)
        self._lengths_P = np.zeros(0, dtype=np.int64)
        self._asked_P = np.zeros(0, dtype=np.int64)
        """tokens that were asked for, of which so many (lengths) have come back"""
        self._limits_P = np.zeros(0, dtype=np.int64)
        self._episodes_P = np.zeros(0, dtype=np.int64)
        """-1: it is no turn of any episode"""
        self._prompts_P = np.zeros(0, dtype=np.int64)
        self._noise_PM = np.zeros((0, 0), dtype=np.float32)
        self._tokens_PM = np.zeros((0, 0), dtype=np.int64)
        self._logprobs_PM = np.zeros((0, 0), dtype=np.float32)

    def __len__(self) -> int:
        """places taken"""
        return len(self.jobs)

    @property
    def under_way(self) -> int:
        return int(self.under_way_P.sum())

    @property
    def some_end(self) -> bool:
        """whether one under way comes to its limit with what was asked for"""
        return bool((self._asked_P >= self._limits_P)[self.under_way_P].any())

    @property
    def all_end(self) -> bool:
        return bool((self._asked_P >= self._limits_P)[self.under_way_P].all())

    @property
    def most_left(self) -> int:
        """tokens that one under way may yet be asked for"""
        return int((self._limits_P - self._asked_P)[self.under_way_P].max())

    @property
    def longest(self) -> int:
        """tokens of the longest row under way, when it has what was asked for"""
        return int((self._prompts_P + self._asked_P)[self.under_way_P].max())

    @property
    def typical(self) -> int:
        """tokens of a prompt, on average"""
        return int(self._prompts_P.mean())

    @property
    def has_episodes(self) -> bool:
        """whether any row is a turn of an episode"""
        return bool((self._episodes_P >= 0).any())

    def before(self, job: Job) -> list[int]:
        """Where rows that are over lie which are turns of the same episode."""
        if job.episode is None:
            return []
        found: list[int] = np.flatnonzero(~self.under_way_P & (self._episodes_P == job.episode)).tolist()
        return [place for place in found if self.jobs[place].whose == job.whose]

    def known(self, job: Job) -> Known | None:
        """How its prompt begins, if the turn before it still lies somewhere, and half of the prompt does with it. Of what a row
        wrote the last token is not there: nobody read it."""
        for place in self.before(job):
            written = self._tokens_PM[place, : max(0, int(self._lengths_P[place]) - 1)]
            lies = np.concatenate([self.jobs[place].prompt, written])[: len(job.prompt) - 1]
            other = np.flatnonzero(lies != job.prompt[: len(lies)])
            alike = int(other[0]) if len(other) else len(lies)
            if alike >= WORTH_KEEPING * len(job.prompt):
                return Known(place, alike)
        return None

    def forget(self) -> None:
        """What is read and written here so far is not to be read on from, when those are over who are under way either."""
        self._episodes_P[:] = -1

    def seat(
        self, jobs: Sequence[Job], reading: bool = False, known: Sequence[Known | None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(the place of each, the noise of its first token): where its beginning lies, else places of rows that are over, then
        new ones. `reading`: they are asked for nothing until they are `ready`, and then for their first token too."""
        kept_N = np.array([-1 if one is None else one.place for one in known or [None] * len(jobs)])
        free_N = np.setdiff1d(np.flatnonzero(~self.under_way_P), kept_N)[: int((kept_N < 0).sum())]
        more = int((kept_N < 0).sum()) - len(free_N)
        places_N = kept_N.copy()
        places_N[kept_N < 0] = np.append(free_N, np.arange(len(self), len(self) + more))
        self.jobs += [jobs[0]] * more
        self._hidden += [None] * more
        limits_N = np.array([job.limit for job in jobs])
        self._make_room(len(self), int(limits_N.max()) + self._beyond)
        for place, job in zip(places_N, jobs, strict=True):
            self.jobs[place] = job
        self.under_way_P[places_N], self._lengths_P[places_N], self._limits_P[places_N] = True, 0, limits_N
        self._request_ids_P[places_N], self._asked_P[places_N] = [job.request_id for job in jobs], 0 if reading else 1
        self._reading_P[places_N] = reading
        self._prompts_P[places_N] = [len(job.prompt) for job in jobs]
        self._episodes_P[places_N] = [-1 if job.episode is None else job.episode for job in jobs]
        self._noise_PM[places_N] = uniforms([job.seed for job in jobs], self._noise_PM.shape[1])
        return places_N, self._noise_PM[places_N, 0]

    def ready(self, places_N: np.ndarray) -> None:
        self._reading_P[places_N] = False

    def ask(self, steps: int) -> tuple[np.ndarray, Asked]:
        """([places, steps] the noise of each row's next tokens, who is to have them)"""
        noise_PK = np.take_along_axis(self._noise_PM, self._asked_P[:, None] + np.arange(steps), axis=1)
        places_N = np.flatnonzero(self.under_way_P & ~self._reading_P)
        self._asked_P[places_N] += steps
        return noise_PK, (places_N, self._request_ids_P[places_N])

    def waiting(self, asked: Asked) -> np.ndarray:
        """The places where the same rows are still under way."""
        places_N, request_ids_N = asked
        return places_N[self.under_way_P[places_N] & (self._request_ids_P[places_N] == request_ids_N)]

    def hold(self, places_N: np.ndarray, hidden_ND: np.ndarray | None) -> None:
        """The hidden states that will come with the completions."""
        for i, place in enumerate(places_N):
            self._hidden[place] = None if hidden_ND is None else hidden_ND[i].copy()

    def record(self, places_N: np.ndarray, tokens_NK: np.ndarray, logprobs_NK: np.ndarray, stops: Stops) -> list[Over]:
        """The next tokens of rows under way. Returns those that are over with them."""
        if not np.isfinite(logprobs_NK).all():
            raise NotFinite(
                "the model's logits are not finite numbers: its weights have diverged or do not fit its precision. "
                "Go back to an earlier checkpoint, and lower the learning rate."
            )
        starts_N = self._lengths_P[places_N]
        columns_NK = starts_N[:, None] + np.arange(tokens_NK.shape[1])
        self._tokens_PM[places_N[:, None], columns_NK] = tokens_NK
        self._logprobs_PM[places_N[:, None], columns_NK] = logprobs_NK
        ends_N = np.minimum(starts_N + tokens_NK.shape[1], self._limits_P[places_N])
        self._lengths_P[places_N] = ends_N
        candidate_NK = stops.interesting(tokens_NK)
        may_stop_N = np.logical_or.reduce(candidate_NK, axis=1)
        at_limit_N = ends_N == self._limits_P[places_N]
        over, ended = [], []
        which_M = np.flatnonzero(may_stop_N | at_limit_N)
        of_each = (x_N[which_M].tolist() for x_N in (places_N, starts_N, ends_N, may_stop_N, at_limit_N))
        for i, place, start, length, may_stop, at_limit in zip(which_M, *of_each, strict=True):
            stopped = False
            if may_stop:
                length, stopped = _end(self._tokens_PM[place], candidate_NK[i], start, length, stops)
            if stopped or at_limit:
                tokens_T, logprobs_T = self._tokens_PM[place, :length].copy(), self._logprobs_PM[place, :length].copy()
                over.append(Over(self.jobs[place], tokens_T, logprobs_T, stopped, self._hidden[place]))
                ended.append(place)
        self.under_way_P[ended], self._asked_P[ended] = False, 0
        return over

    def move_together(self, kept: Sequence[int] = ()) -> np.ndarray:
        """Give up the places of rows that are over, but for these. Returns which place each place now has the row of."""
        stays_P = self.under_way_P.copy()
        stays_P[list(kept)] = True
        order = _fill_holes(np.flatnonzero(stays_P))
        self.jobs = [self.jobs[place] for place in order]
        self._hidden = [self._hidden[place] for place in order]
        to = np.flatnonzero(order != np.arange(len(order)))
        for name in _BY_PLACE:
            values = getattr(self, name)
            values[to] = values[order[to]]
            setattr(self, name, values[: len(order)])
        return order

    def _make_room(self, places: int, steps: int) -> None:
        for name in _BY_PLACE:
            old = getattr(self, name)
            shape = (places, max(steps, old.shape[1])) if old.ndim == 2 else (places,)
            if shape != old.shape:
                new = np.zeros(shape, old.dtype)
                new[tuple(slice(n) for n in old.shape)] = old
                setattr(self, name, new)


_BY_PLACE = (
    *("under_way_P", "_reading_P", "_request_ids_P", "_lengths_P", "_asked_P", "_limits_P", "_prompts_P", "_episodes_P"),
    *("_noise_PM", "_tokens_PM", "_logprobs_PM"),
)


def _end(tokens_M: np.ndarray, candidate_K: np.ndarray, start: int, end: int, stops: Stops) -> tuple[int, bool]:
    """(length, whether it stopped) of a row whose tokens `start` to `end` are new."""
    for at in range(start, end):
        if candidate_K[at - start] and stops.ends(tokens_M[: at + 1]):
            return at + 1, True
    return end, False


def _fill_holes(alive: np.ndarray) -> np.ndarray:
    """The rows that go on, as few of them moved as possible: the last ones take the places of the ended ones."""
    order = np.arange(len(alive))
    holes = np.setdiff1d(order, alive)
    order[holes] = alive[len(alive) - len(holes) :]
    return order
