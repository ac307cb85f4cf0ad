"""When two phrases mean the same to the shop's judge: fuzzy words, colours, and the nouns of a title.

alike(a, b)    token_set_ratio > 85 of thefuzz, rounded as there: letters, digits and spaces alone, small letters
colour(s)      the first colour (in alphabetical order) that is part of it, else itself: `light blue` is `blue`
nouns(title)   what the original has spaCy tag as noun or proper noun; here every word that is neither a number nor of a
               closed list of function words; it agrees with spaCy on the pairs of titles in the released tests, and how often
               it does on others is not known
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from tacit.core.errors import TacitError

ALIKE = 85.5
"""a ratio is rounded before it is held against 85, half a point to the even side"""

_COLOURS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel
camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry
cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey
heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight
mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow
red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal
tiger turquoise violet walnut wheat white wine yellow
"""
COLOURS = tuple(_COLOURS.split())
"""what the published rule takes for a colour"""

_NO_LETTER = re.compile(r"\W")
_LATIN_1 = dict.fromkeys(range(128, 256))
_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’.](?=\w))*")
_FUNCTION = """
a about above after all also an and any are as at be because been before below best between both but by can
each either every extra few for from great has have high how in inside into is it its large less long low made
make makes many more most much new no non nor not of off on one only onto or other our out outside over own
per perfect plus same several she short small so some such super than that the their them then these they this
those three through to too two under ultra until up upon use very via was we well what when where which while
who will with within without you your
"""
_FUNCTION_WORDS = frozenset(_FUNCTION.split())


def alike(first: str, second: str) -> bool:
    return _ratio()(_plain(first), _plain(second)) >= ALIKE


def colour(text: str) -> str:
    return next((name for name in COLOURS if name in text), text)


@lru_cache(8192)
def nouns(title: str) -> tuple[str, ...]:
    """In small letters, repeated where the title repeats them."""
    found = (word.lower().rstrip(".") for word in _WORD.findall(title))
    return tuple(word for word in found if len(word) > 1 and word not in _FUNCTION_WORDS)


@lru_cache(65536)
def _plain(text: str) -> str:
    return _NO_LETTER.sub(" ", text.translate(_LATIN_1)).lower().strip()


@lru_cache(1)
def _ratio() -> Callable[[str, str], float]:
    try:
        from rapidfuzz.fuzz import token_set_ratio
    except ImportError as error:
        raise TacitError(
            "the shop's judge needs the package RapidFuzz, which is not installed: `pip install rapidfuzz`."
        ) from error
    return token_set_ratio
