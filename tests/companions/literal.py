"""ReuseRL's definitions written literally and slowly; references for the fast code."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from math import inf, log2

STRICTLY = 1e-9


def segmentations(sequence, phrases):
    """All segmentations of the sequence."""
    if not sequence:
        yield ()
    for length in range(1, len(sequence) + 1):
        if sequence[:length] in phrases:
            yield from ((sequence[:length], *rest) for rest in segmentations(sequence[length:], phrases))


def seg(sequence, phrases):
    return min((len(way) for way in segmentations(sequence, phrases)), default=inf)


def segment(sequence, phrases):
    """The shortest segmentation. Ties: the longest last phrase, then the longest one before it, and so on."""
    ways = [way for way in segmentations(sequence, phrases) if len(way) == seg(sequence, phrases)]
    return max(ways, key=lambda way: [len(phrase) for phrase in reversed(way)])


def description_length(corpus, phrases, alphabet, max_phrase):
    """Eqs. 2 and 3."""
    bits = sum(len(p) * log2(alphabet) + log2(max_phrase) for p in phrases)
    spelled = [seg(s, phrases) for s in corpus]
    return inf if inf in spelled else (bits + sum(spelled) * log2(len(phrases))) / len(corpus)


def merge(corpus, skills, max_phrase):
    """The merge rounds of docs/methods/reuserl.md; Eq. 3 alone decides on each candidate. Phrases in merge order."""
    phrases = [(skill,) for skill in skills]
    while True:
        now = description_length(corpus, phrases, len(skills), max_phrase)
        pairs = Counter(pair for s in corpus for pair in pairwise(segment(s, phrases)))
        for a, b in sorted(pairs, key=lambda pair: (-pairs[pair], " ".join(pair[0]), " ".join(pair[1]))):
            if len(a + b) > max_phrase or a + b in phrases:
                continue
            then = description_length(corpus, [*phrases, a + b], len(skills), max_phrase)
            if (now - then) * len(corpus) > STRICTLY:
                phrases.append(a + b)
                break
        else:
            return tuple(phrases[len(skills) :])


def best(corpus, skills, max_phrase, keep):
    """The lowest description length over all sets of phrases; with `keep`, only sets with every single skill."""
    single = [(skill,) for skill in skills]
    longer = sorted({s[i:j] for s in corpus for i in range(len(s)) for j in range(i + 2, min(len(s), i + max_phrase) + 1)})
    fixed, free = (single, longer) if keep else ([], single + longer)
    sets = (fixed + list(chosen) for size in range(len(free) + 1) for chosen in combinations(free, size))
    return min(description_length(corpus, phrases, len(skills), max_phrase) for phrases in sets if phrases)
