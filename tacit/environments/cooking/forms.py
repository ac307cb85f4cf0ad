"""The cooking game's state block in other forms: `text`, from texts and actions alone, and `no_places`, without the line of
what is left to search."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.core.types import Transition
from tacit.core.world import Tracker
from tacit.environments.cooking.observed import Scene
from tacit.environments.cooking.tracker import CookingState, CookingTracker, Verdict


class TextTracker(CookingTracker):
    """Knows a refusal and the end by what is said."""

    version = "cooking-text-1"

    def judge(self, transition: Transition, scene: Scene) -> Verdict:
        return Verdict(scene.refused, "*** The End ***" in scene.answer, "*** You lost! ***" in scene.answer)


class WithoutPlaces(CookingTracker):
    version = "cooking-no_places-1"

    def render(self, state: CookingState) -> str:
        return "\n".join(line for line in super().render(state).split("\n") if not line.startswith("to search: "))


FORMS: Mapping[str, Tracker] = {"text": TextTracker(), "no_places": WithoutPlaces()}
"""beside `full`"""
