"""ReuseRL's skill dictionary: phrases over an alphabet of skills, minimum segmentation, greedy merging (§3.1, §3.2, §3.7),
bounds, and the companion that extracts it from successes (the E-step of Algorithm 1).

    seg(s, C)      fewest phrases of C that spell s exactly                       (dynamic program)
    L_dict(C)    = Σ_p (|p| log₂ K + log₂ L)                                      Eq. 2
    L_BDL(B, C)  = L_dict(C) / |B| + mean over B of seg(s, C) · log₂ |C|          Eq. 3

K is the size of the alphabet, used or not; L the longest phrase allowed; |C| counts single skills too.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from math import log, log2, sqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tacit.core.errors import TacitError, unknown
from tacit.core.files import read_json
from tacit.core.method import Companion
from tacit.core.protocols import Policy
from tacit.core.types import Group, IterationInfo
from tacit.core.world import Alphabet
from tacit.rewards.segmentation import success_skills

Phrase = tuple[str, ...]
Sequences = Sequence[Phrase]


@dataclass(frozen=True)
class Dictionary:
    """C: every single skill, and the merged phrases. Two dictionaries are equal if their phrases and the order are equal."""

    skills: tuple[str, ...]  # Σ
    merged: tuple[Phrase, ...] = ()  # the phrases of two or more skills, in the order they were merged
    max_phrase: int = 4  # L

    def __post_init__(self) -> None:
        check_alphabet(self.skills)
        for phrase in self.merged:
            self.check_known(phrase)
            if not 2 <= len(phrase) <= self.max_phrase:
                raise TacitError(f"the phrase {spell(phrase)!r} has {len(phrase)} skills; it must have 2 to {self.max_phrase}.")
        if len(self._phrases) < len(self.merged):
            raise TacitError("the dictionary contains a phrase twice.")

    def __len__(self) -> int:
        """|C|"""
        return len(self.skills) + len(self.merged)

    @property
    def phrases(self) -> tuple[Phrase, ...]:
        return (*((skill,) for skill in self.skills), *self.merged)

    def __contains__(self, phrase: Phrase) -> bool:
        return phrase in self._phrases or (len(phrase) == 1 and phrase[0] in self._skill_set)

    @property
    def bits(self) -> float:
        """L_dict(C), Eq. 2."""
        return sum(phrase_bits(len(p), len(self.skills), self.max_phrase) for p in self.phrases)

    def seg(self, sequence: Sequence[str]) -> int:
        """seg(s, C): the fewest phrases that concatenate to the sequence; 0 for an empty sequence."""
        return len(self.segment(sequence))

    def segment(self, sequence: Sequence[str]) -> tuple[Phrase, ...]:
        """The minimum segmentation; of several, that with the longest last phrase, then the longest before it, and so on."""
        sequence = tuple(sequence)
        self.check_known(sequence)
        lengths = [
            [n for n in self._lengths.get(skill, ()) if n <= end and sequence[end - n : end] in self._phrases]
            for end, skill in enumerate(sequence, 1)
        ]
        return tuple(sequence[a:b] for a, b in pairwise(min_segmentation(lengths)))

    def description_length(self, corpus: Sequences) -> float:
        """L_BDL(B, C), Eq. 3: bits per sequence."""
        if not corpus:
            raise TacitError("the description length needs at least one success.")
        return (self.bits + sum(map(self.seg, corpus)) * log2(len(self))) / len(corpus)

    def check_known(self, sequence: Collection[str]) -> None:
        if not self._skill_set.issuperset(sequence):
            raise unknown("skill", str(next(s for s in sequence if s not in self._skill_set)), self.skills)

    @cached_property
    def _phrases(self) -> frozenset[Phrase]:
        return frozenset(self.merged)

    @cached_property
    def _skill_set(self) -> frozenset[str]:
        return frozenset(self.skills)

    @cached_property
    def _lengths(self) -> dict[str, tuple[int, ...]]:
        """Last skill -> lengths of the merged phrases that end with it, shortest first."""
        lengths: dict[str, set[int]] = {}
        for phrase in self.merged:
            lengths.setdefault(phrase[-1], set()).add(len(phrase))
        return {skill: tuple(sorted(values)) for skill, values in lengths.items()}


def min_segmentation(lengths_T: Sequence[Sequence[int]]) -> list[int]:
    """The cut positions of a minimum segmentation of T skills, including 0 and T.

    `lengths_T`: for each position, the lengths of the merged phrases that end there, shortest first. A single skill is always a
    phrase.

    fewest[t] = 1 + min over those lengths n, and 1, of fewest[t − n]; ties go to the longest
    """
    fewest, last, best = [0], [1] * (len(lengths_T) + 1), 0
    for end, lengths in enumerate(lengths_T, 1):
        for length in lengths:
            if fewest[end - length] <= best:
                best, last[end] = fewest[end - length], length
        best += 1
        fewest.append(best)
    cuts = [len(lengths_T)]
    while cuts[-1]:
        cuts.append(cuts[-1] - last[cuts[-1]])
    return cuts[::-1]


def phrase_bits(length: int, alphabet: int, max_phrase: int) -> float:
    """|p| log₂ K + log₂ L: bits for the skills of a phrase and for its length."""
    return length * log2(alphabet) + log2(max_phrase)


def spell(phrase: Iterable[str]) -> str:
    return " ".join(phrase)


def check_alphabet(skills: Sequence[str]) -> None:
    if not skills:
        raise TacitError("an alphabet needs at least one skill.")
    invalid = [skill for skill in skills if not isinstance(skill, str) or not skill.strip()]
    if invalid:
        raise TacitError(f"the alphabet contains {invalid[0]!r}; a skill must be a non-empty name, such as 'TAKE'.")
    if len(set(skills)) < len(skills):
        twice = next(skill for skill, count in Counter(skills).items() if count > 1)
        raise TacitError(f"the alphabet has the skill {twice!r} twice.")


MIN_GAIN_BITS = 1e-9  # bits that a merge must save; smaller gains may be rounding errors, which differ between machines


@dataclass(frozen=True)
class Extraction:
    """The extracted dictionary, and statistics of its corpus under it."""

    dictionary: Dictionary
    sequences: int  # |B|
    segments: int  # Σ seg(s, C) over the corpus
    skills: int  # Σ |s|
    uses: Mapping[Phrase, int]  # how often each phrase occurs in the segmented corpus

    @property
    def description_length(self) -> float:
        return (self.dictionary.bits + self.segments * log2(len(self.dictionary))) / self.sequences


def extract_dictionary(corpus: Sequences, skills: Sequence[str], max_phrase: int = 4) -> Extraction:
    """The E-step, by greedy merging (§3.7; the exact rule is in docs/methods/reuserl.md).

        C ← single skills
        repeat: segment every sequence minimally under C and count adjacent pairs of phrases;
                in order of count, ties by text, add the first p = a∘b that fits L, is not in C and strictly lowers L_BDL;
                stop if none does

    For speed, a skill is one letter, so a sequence is a string and a phrase a substring. Only sequences that contain p are
    segmented again, equal ones once. A pair is tried only if it can pay: p saves at most one segment per occurrence, because
    each use of p could be undone with one more phrase.
    """
    if not corpus:
        raise TacitError("extracting a dictionary needs at least one success.")
    Dictionary(tuple(skills), (), max_phrase).check_known(set().union(*corpus))
    letters = {skill: chr(i) for i, skill in enumerate(skills)}
    words = ["".join(letters[skill] for skill in sequence) for sequence in corpus]
    occurrences = Counter(w[i : i + n] for w in words for n in range(2, max_phrase + 1) for i in range(len(w) - n + 1))
    counts, merged = Counter(words), list[str]()
    segmented = {word: Segmentation(word, [()] * len(word), list(word)) for word in words}

    def to_skills(phrase: str) -> Phrase:
        return tuple(skills[ord(letter)] for letter in phrase)

    def rank(pair: tuple[str, str]) -> tuple[int, str, str, Phrase, Phrase]:
        a, b = map(to_skills, pair)
        return -pairs[pair], spell(a), spell(b), a, b  # a and b break ties between names with spaces

    while True:
        segments, size = sum(counts[w] * len(s.phrases) for w, s in segmented.items()), len(skills) + len(merged)
        min_saved = [min_saved_segments(segments, size, phrase_bits(n, len(skills), max_phrase)) for n in range(max_phrase + 1)]
        pairs = Counter(chain.from_iterable(pairwise(segmented[word].phrases) for word in words))
        candidates = [(a, b) for a, b in pairs if len(p := a + b) <= max_phrase and occurrences[p] >= min_saved[len(p)]]
        for a, b in sorted((pair for pair in candidates if "".join(pair) not in merged), key=rank):
            p = a + b
            changed = {word: s.with_phrase(p) for word, s in segmented.items() if p in word}
            saved = sum(counts[w] * (len(segmented[w].phrases) - len(new.phrases)) for w, new in changed.items())
            if saved >= min_saved[len(p)]:
                merged.append(p)
                segmented |= changed
                break
        else:
            dictionary = Dictionary(tuple(skills), tuple(map(to_skills, merged)), max_phrase)
            uses = Counter(chain.from_iterable(segmented[word].phrases for word in words))
            uses_by_phrase = {to_skills(phrase): count for phrase, count in uses.items()}
            return Extraction(dictionary, len(corpus), segments, sum(map(len, corpus)), uses_by_phrase)


def merge_gain(segments: int, size: int, saved: int, bits: float) -> float:
    """−|B| Δ_BDL: bits saved by adding a phrase of `bits` bits to `size` phrases, if it saves `saved` of `segments`."""
    after = (segments - saved) * log2(size + 1) + bits
    return segments * log2(size) - after


def min_saved_segments(segments: int, size: int, bits: float) -> int:
    """The fewest segments that a phrase of `bits` bits must save to reduce the total; above `segments` if none would."""
    return bisect_left(range(segments + 1), True, key=lambda saved: merge_gain(segments, size, saved, bits) > MIN_GAIN_BITS)


class Segmentation(NamedTuple):
    word: str
    lengths: list[tuple[int, ...]]  # for each letter, the lengths of the merged phrases that end with it, shortest first
    phrases: list[str]

    def with_phrase(self, phrase: str) -> Segmentation:
        lengths, start = self.lengths.copy(), self.word.find(phrase)
        while start >= 0:
            end = start + len(phrase) - 1
            lengths[end] = tuple(sorted((*lengths[end], len(phrase))))
            start = self.word.find(phrase, start + 1)
        return Segmentation(self.word, lengths, [self.word[a:b] for a, b in pairwise(min_segmentation(lengths))])


# Generalization bounds of a dictionary (ReuseRL §3.5, §A.2–A.3). Logarithms of sizes are in bits.
#
#     U_m(C)     = L_dict(C)/m + T log₂|C|
#     ℓ̃_m(s, C)  = (L_dict(C)/m + seg(s, C) log₂|C|) / U_m(C)                               in [0, 1] for 1 ≤ seg ≤ T
#     E ℓ̃(s, Ĉ)  ≤ mean ℓ̃(sᵢ, Ĉ) + √((L_dict(Ĉ) ln 2 + ln(m/δ)) / 2m)                      Theorem 3, Eq. 7
#     E ψ(s)     ≤ mean ψ(sᵢ) + (B*/m + K* log₂|C*|) √((B* ln 2 + ln(m/δ)) / 2m)            Proposition 4, Eq. 8
#
# They hold with probability 1 − δ over m independent successes of one policy; Eq. 7 also for a dictionary extracted from them,
# since P(C) = 2^−L_dict(C) / Z is a prior with Z ≤ 1. A success buffer mixes policies: there the bound only measures the fit.


def normalized_loss(segments: float, dictionary: Dictionary, m: int, horizon: int) -> float:
    """ℓ̃_m of a success with 1 … T segments. It is affine, so the mean number of segments gives the mean loss."""
    shared, per_segment = dictionary.bits / m, log2(len(dictionary))
    longest = shared + horizon * per_segment
    return (shared + segments * per_segment) / longest if longest else 0.0  # with one skill and L = 1 everything costs 0 bits


def complexity(bits: float, m: int, delta: float) -> float:
    """√((bits ln 2 + ln(m/δ)) / 2m): the penalty for choosing the dictionary after seeing the sample."""
    return sqrt((bits * log(2) + log(m / delta)) / (2 * m))


def theorem_3(segments: float, dictionary: Dictionary, m: int, horizon: int, delta: float = 0.05) -> float:
    """Upper bound on the expected normalised description length of a fresh success, from the mean segments of m successes."""
    return normalized_loss(segments, dictionary, m, horizon) + complexity(dictionary.bits, m, delta)


def proposition_4(
    corpus: Sequences,
    dictionary: Dictionary,
    delta: float = 0.05,
    dictionary_bits: float | None = None,
    most_segments: int | None = None,
) -> float:
    """Upper bound in bits on the expected description length of a fresh success under a dictionary fixed beforehand, given B*
    (`dictionary_bits`) and K* (`most_segments`) of Assumption 2. The default K* is a guess: a rarer success may need more."""
    segments, m = [dictionary.seg(s) for s in corpus], len(corpus)
    budget = dictionary.bits if dictionary_bits is None else dictionary_bits
    most = max(segments) if most_segments is None else most_segments
    largest = budget / m + most * log2(len(dictionary))
    return dictionary.description_length(corpus) + largest * complexity(budget, m, delta)


FILE = "dictionary.json"


@dataclass
class SkillDictionary(Companion):
    """Learns a dictionary from successes. Equality compares the settings, not the learned dictionary."""

    name = "dictionary"
    read_in_rollouts: ClassVar[bool] = False

    alphabet: Alphabet
    horizon: int  # T, for the bound
    max_phrase: int = 4  # L
    buffer: int = 256  # successes kept from earlier batches; 0 uses the batch alone
    delta: float = 0.05  # probability with which the bound may fail
    dictionary: Dictionary = field(init=False, compare=False, repr=False)
    successes: list[Phrase] = field(init=False, compare=False, repr=False)  # the buffer, oldest first
    history: History = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.dictionary = Dictionary(self.alphabet.skills, (), self.max_phrase)
        self.successes, self.history = [], History()

    def seg(self, sequence: Sequence[str]) -> int:
        return self.dictionary.seg(sequence)

    def observe(
        self, groups: Sequence[Group], policy: Policy | None = None, info: IterationInfo | None = None
    ) -> dict[str, float]:
        """The E-step; returns its metrics. An invalid skill raises before anything is changed."""
        began = time.perf_counter()
        batch = [success_skills(self.alphabet, t) for g in groups for t in g.trajectories if t.success]
        self.history.iteration += 1
        if not batch:
            return self._sizes() | {"dictionary_seconds": time.perf_counter() - began}
        free = self.buffer - len(batch)
        corpus = [*(self.successes[-free:] if free > 0 else ()), *batch]
        self.successes = corpus[-self.buffer :] if self.buffer else []
        before, extraction = self.dictionary, extract_dictionary(corpus, self.alphabet.skills, self.max_phrase)
        self.dictionary = extraction.dictionary
        self.history.add(extraction)
        changed = len(set(before.merged) ^ set(extraction.dictionary.merged))
        segments = extraction.segments / extraction.sequences
        metrics = {
            **self._sizes(),
            "dictionary_changed": changed,
            "description_length": extraction.description_length,
            "success_skills": extraction.skills / extraction.sequences,
            "success_segments": segments,
            "phrase_length": extraction.skills / extraction.segments,
        }
        if max(map(len, corpus)) <= self.horizon:  # otherwise the loss exceeds 1 and there is no bound
            settings = segments, self.dictionary, extraction.sequences, self.horizon
            metrics |= {"mdl_loss": normalized_loss(*settings), "mdl_bound": theorem_3(*settings, self.delta)}
        return metrics | {"dictionary_seconds": time.perf_counter() - began}

    def state(self) -> dict[str, Any]:
        history = {"iteration": self.history.iteration, "phrases": [*self.history.phrases], "steps": [*self.history.steps]}
        phrases = self.dictionary.merged
        return {"skills": self.alphabet.skills, "phrases": phrases, "buffer": self.successes, "history": history}

    def save(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(self.state(), ensure_ascii=False), encoding="utf-8")

    def load(self, directory: Path) -> None:
        state = read_json(directory / FILE)
        if tuple(state["skills"]) != self.alphabet.skills:
            raise TacitError("the saved skill dictionary has another alphabet: the world's skills have changed.")
        self.dictionary = Dictionary(self.alphabet.skills, tuple(map(tuple, state["phrases"])), self.max_phrase)
        self.successes = [tuple(s) for s in state["buffer"]]
        self.history = History.load(state["history"])

    def _sizes(self) -> dict[str, float]:
        return {
            "dictionary_size": len(self.dictionary),
            "dictionary_merged": len(self.dictionary.merged),
            "dictionary_bits": self.dictionary.bits,
            "success_buffer": len(self.successes),
        }


@dataclass
class History:
    """The merged phrases of every E-step with their uses. Each phrase is stored once and referred to by number."""

    iteration: int = 0  # batches observed
    phrases: list[Phrase] = field(default_factory=list)
    steps: list[list[Any]] = field(default_factory=list)
    """[iteration, [[number of a phrase, uses in the corpus], …]] of each E-step that had a success; append-only"""

    def __post_init__(self) -> None:
        self._numbers = {phrase: i for i, phrase in enumerate(self.phrases)}

    def add(self, extraction: Extraction) -> None:
        uses = []
        for phrase in extraction.dictionary.merged:
            if phrase not in self._numbers:
                self._numbers[phrase] = len(self.phrases)
                self.phrases.append(phrase)
            uses.append([self._numbers[phrase], extraction.uses.get(phrase, 0)])
        self.steps.append([self.iteration, uses])

    def uses(self) -> list[tuple[int, dict[Phrase, int]]]:
        """(iteration, uses of each merged phrase in the dictionary at that time)"""
        return [(step, {self.phrases[i]: count for i, count in uses}) for step, uses in self.steps]

    def current_phrases(self) -> list[dict[str, Any]]:
        """The current merged phrases, most used first: uses, iteration they were last added, share of E-steps with them."""
        history = self.uses()
        uses = history[-1][1] if history else {}
        rows = []
        for phrase in sorted(uses, key=lambda p: (-uses[p], p)):
            present = [phrase in uses_then for _, uses_then in history]
            last_absent = max((i for i, is_present in enumerate(present) if not is_present), default=-1)
            since, share = history[last_absent + 1][0], sum(present) / len(present)
            rows.append({"phrase": list(phrase), "uses": uses[phrase], "since": since, "present": round(share, 4)})
        return rows

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> History:
        return cls(state["iteration"], [tuple(p) for p in state["phrases"]], list(state["steps"]))
