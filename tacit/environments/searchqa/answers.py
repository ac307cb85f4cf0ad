"""When an answer is right: the usual normalisation of question answering, exact match and F1.

    normalised(a) = lower case, without punctuation, without a, an and the, single spaces
    EM(a, golds)  = 1 where normalised(a) is one of the normalised golds
    F1(a, gold)   = 2PR / (P + R) over the words they share; golds: the best of them

Of `yes` and `no` only the word itself is worth anything (HotpotQA's rule): F1 is then EM.

Other than SQuAD's normalisation, whose punctuation is ASCII's: curly quotes, dashes and the ellipsis go as well, so `O’Brien’s`
is `OBriens` here and not there, and `1914–1918` is `1914-1918`. Where nothing is left of a gold or of an answer (`%`, `A`,
`The The`), SQuAD's finds all such equal; here they are compared as they are written, in lower case and single spaces.
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
    said = _comparable(answer)
    return bool(said) and any(said == _comparable(gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    return max((_f1(_comparable(answer), _comparable(gold)) for gold in golds), default=0.0)


def _comparable(text: str) -> str:
    return normalised(text) or " ".join(text.lower().split())


def _f1(said: str, gold: str) -> float:
    if said == gold or said in _WHOLE or gold in _WHOLE:
        return float(said == gold and bool(said))
    shared = sum((Counter(said.split()) & Counter(gold.split())).values())
    return 2 * shared / (len(said.split()) + len(gold.split())) if shared else 0.0
