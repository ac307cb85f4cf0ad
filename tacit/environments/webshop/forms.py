"""The shop's state block in other forms.

full    tracker.py: also what was read of the product, and which were opened before
paper   the five fields that §3.1 names (Xie et al., 2026), in its order: the current query, the inspected product, the
        selected options, the remaining options, and whether one is ready to purchase
"""

from __future__ import annotations

from collections.abc import Mapping

from tacit.core.world import Tracker
from tacit.environments.webshop.tracker import ShopState, ShopTracker, cut, told


class PaperTracker(ShopTracker):
    version = "webshop-paper-1"

    def render(self, state: ShopState) -> str:
        visit = state.visit
        fields = {
            "current_query": visit.query or "None",
            "inspected_product": visit.product or "None",
            "selected_options": told(visit.chosen).replace("none", "None"),
            "remaining_options": told(visit.remaining).replace("none", "None"),
            "ready_to_purchase": "yes" if visit.ready else "no",
        }
        return "\n".join(f"{name}: {cut(value)}" for name, value in fields.items())


FORMS: Mapping[str, Tracker] = {"paper": PaperTracker()}
"""beside `full`"""
