"""When an answer is right: the usual normalisation of question answering, exact match and F1.

    normalised(a) = lower case, without punctuation, without a, an and the, single spaces
    EM(a, golds)  = 1 where normalised(a) is one of the normalised golds
    F1(a, gold)   = 2PR / (P + R) over the words they share; golds: the best of them

Of `yes` and `no` only the word itself is worth anything (HotpotQA's rule): F1 is then EM.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation + "‘’“”´–—…")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WHOLE = ("yes", "no", "noanswer")


def normalised(text: str) -> str:
    """
    >>> normalised("The  Devil's Hairpin!")
    'devils hairpin'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    said = normalised(answer)
    return bool(said) and any(said == normalised(gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    return max((_f1(normalised(answer), normalised(gold)) for gold in golds), default=0.0)


def _f1(said: str, gold: str) -> float:
    if said == gold or said in _WHOLE or gold in _WHOLE:
        return float(said == gold and bool(said))
    shared = sum((Counter(said.split()) & Counter(gold.split())).values())
    return 2 * shared / (len(said.split()) + len(gold.split())) if shared else 0.0
