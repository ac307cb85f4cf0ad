"""What a purchase is worth (WebShop, Yao et al. 2022, Eq. 1; the released `goal.py` decides what the paper leaves open).

    r = r_type · (attributes matched + options matched + [price ≤ limit]) / (attributes wanted + options wanted + 1)

an attribute   is matched where one of the product's is alike, or where it stands in title, features or description
an option      is matched where a chosen value is alike, its colour standing for it; what is wanted is compared as `name value`,
               because that is what the released code compares (it hands the pair over as one)
r_type         1; ½ where neither query, nor two steps of the category path, nor more than a fifth of the title's nouns agree;
               1/10 where less than a tenth of the nouns do; 0 where none does
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tacit.core.errors import TacitError
from tacit.worlds.webshop.catalogue import Goal, Product

# When two phrases mean the same to the shop's judge: fuzzy words, colours, and the nouns of a title.
#
# alike(a, b)    token_set_ratio > 85 of thefuzz, rounded as there: letters, digits and spaces alone, small letters
# colour(s)      the first colour (in alphabetical order) that is part of it, else itself: `light blue` is `blue`
# nouns(title)   what the original has spaCy tag as noun or proper noun; here every word that is neither a number nor of a
#                closed list of function words; it agrees with spaCy on the pairs of titles in the released tests, and how often
#                it does on others is not known

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


NO_NOUNS = 0.2
"""the share of nouns that agree where the wanted title has none"""


@dataclass(frozen=True)
class Verdict:
    """One purchase, judged."""

    kind: float
    """r_type"""
    attributes: int
    options: int
    affordable: bool
    wanted: int
    """attributes and options that are asked for, and the price"""

    @property
    def reward(self) -> float:
        return (self.attributes + self.options + self.affordable) / self.wanted * self.kind


def judge(product: Product, chosen: Mapping[str, str], goal: Goal) -> Verdict:
    return Verdict(
        kind=type_reward(product, goal),
        attributes=sum(_has(product, attribute) for attribute in goal.attributes),
        options=matched_options(chosen, goal),
        affordable=product.price <= goal.limit,
        wanted=len(goal.attributes) + len(goal.options) + 1,
    )


def type_reward(product: Product, goal: Goal) -> float:
    bought, wanted = nouns(product.title), nouns(goal.title)
    share = len(set(bought) & set(wanted)) / len(wanted) if wanted else NO_NOUNS
    steps = _steps(product.path) & _steps(goal.path)
    if share == 0.0:
        return 0.0
    if share < 0.1:
        return 0.1
    return 1.0 if product.query == goal.query or len(steps) >= 2 or share > 0.2 else 0.5


def matched_options(chosen: Mapping[str, str], goal: Goal) -> int:
    values = [colour(value) for value in chosen.values()]
    return sum(any(alike(value, text) for value in values) for text in map(_compared, goal.options))


def _has(product: Product, attribute: str) -> bool:
    if any(alike(own, attribute) for own in product.attributes):
        return True
    told = (product.title, " ".join(product.features), product.description)
    return any(attribute in text.lower() for text in told)


def _compared(option: tuple[str, str]) -> str:
    """What stands for a wanted option. A pair that has a colour for one of its halves is that colour; any other pair is both
    halves; an option without a name (as people's goals have them) is its colour."""
    name, value = option
    if not name:
        return colour(value)
    return next((word for word in COLOURS if word in option), f"{name} {value}")


def _steps(path: str) -> set[str]:
    return {step.strip() for step in path.split("›")}
