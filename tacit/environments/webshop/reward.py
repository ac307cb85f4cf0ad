"""What a purchase is worth (WebShop, Yao et al. 2022, Eq. 1; the released `goal.py` decides what the paper leaves open).

    r = r_type · (attributes matched + options matched + [price ≤ limit]) / (attributes wanted + options wanted + 1)

an attribute   is matched where one of the product's is alike, or where it stands in title, features or description
an option      is matched where a chosen value is alike, its colour standing for it; what is wanted is compared as `name value`,
               because that is what the released code compares (it hands the pair over as one)
r_type         1; ½ where neither query, nor two steps of the category path, nor more than a fifth of the title's nouns agree;
               1/10 where less than a tenth of the nouns do; 0 where none does
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.environments.webshop.goals import Goal
from tacit.environments.webshop.matching import COLOURS, alike, colour, nouns
from tacit.environments.webshop.product import Product

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
