"""Seven atomic skills, ours: ReuseRL has no WebShop.

    search[…]                                          SEARCH
    click[a product]                                   OPEN
    click[next >]                                      MORE
    click[< prev], click[back to search]               BACK
    click[description | features | reviews | attributes]   INSPECT
    click[buy now]                                     BUY
    any other click                                    CHOOSE

A click is a product's where a page of results was seen. Every executed command of either kind has a skill, well formed or not,
refused or not; what is neither has none.
"""

from __future__ import annotations

from tacit.core.types import Observation, Trajectory
from tacit.core.world import Alphabet
from tacit.environments.webshop.observed import DETAIL_CLICKS, read_page
from tacit.environments.webshop.pages import BACK, BUY, NEXT, PREVIOUS

SKILLS = ("SEARCH", "OPEN", "MORE", "BACK", "INSPECT", "CHOOSE", "BUY")
_BY_TEXT = {
    NEXT.lower(): "MORE",
    **dict.fromkeys((PREVIOUS.lower(), BACK.lower()), "BACK"),
    **dict.fromkeys(DETAIL_CLICKS, "INSPECT"),
    BUY.lower(): "BUY",
}


def skill(action: str, observation: Observation) -> str | None:
    name, bracket, text = action.strip().partition("[")
    if not bracket or name not in ("search", "click"):
        return None
    if name == "search":
        return "SEARCH"
    found = _BY_TEXT.get(text.removesuffix("]").lower())
    return found or ("OPEN" if read_page(observation).kind == "results" else "CHOOSE")


def project(trajectory: Trajectory) -> tuple[str, ...]:
    skills = (skill(step.action, step.observation) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


ALPHABET = Alphabet(SKILLS, project)
