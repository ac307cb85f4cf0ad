"""Why nothing right was bought.

wrong_type       bought, but another kind of thing
wrong_product    of the kind, but an attribute is missing
wrong_options    the product is right, what was chosen is not
too_expensive    only the price is wrong
never_opened     out of steps, and no product was ever looked at
timeout          out of steps; otherwise the reason it stopped
"""

from __future__ import annotations

from tacit.core.types import StopReason, Trajectory
from tacit.environments.webshop.observed import read_page

NEVER_OPENED = "never_opened"


def failure(trajectory: Trajectory) -> str:
    """The label of a failed trajectory."""
    if trajectory.stop is StopReason.FAILURE:
        return trajectory.detail or (trajectory.steps[-1].label if trajectory.steps else "") or str(trajectory.stop)
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    seen = (*(step.observation for step in trajectory.steps), trajectory.final)
    return "timeout" if any(read_page(observation).kind == "item" for observation in seen) else NEVER_OPENED
