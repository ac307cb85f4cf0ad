"""Skill alphabet (seven atomic skills, ours), handbook, failure reasons and hindsight. Every search or click has a skill,
refused or not; other actions have none."""

from __future__ import annotations

from collections.abc import Iterator

from tacit.core.hindsight import Skills, critical_steps, tracker_states
from tacit.core.types import StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.webshop.catalogue import NO_LIMIT, Goal
from tacit.worlds.webshop.expert import Shopper
from tacit.worlds.webshop.tracker import ShopTracker, format_options, split_action, truncate
from tacit.worlds.webshop.world import BACK, BUY, DETAIL_CLICKS, NEXT, PREVIOUS, TOO_EXPENSIVE, WRONG_OPTIONS, read_page

SKILLS = ("SEARCH", "OPEN", "MORE", "BACK", "INSPECT", "CHOOSE", "BUY")
_BY_TEXT = {
    NEXT.lower(): "MORE",
    **dict.fromkeys((PREVIOUS.lower(), BACK.lower()), "BACK"),
    **dict.fromkeys(DETAIL_CLICKS, "INSPECT"),
    BUY.lower(): "BUY",
}


def project(trajectory: Trajectory) -> Iterator[str]:
    for step in trajectory.steps:
        name, argument = split_action(step.action)
        if name == "search" and "[" in step.action:
            yield "SEARCH"
        elif name == "click" and "[" in step.action:
            other = "OPEN" if read_page(step.observation).kind == "results" else "CHOOSE"
            yield _BY_TEXT.get(argument, other)


ALPHABET = Alphabet(SKILLS, project)
HANDBOOK = {
    "": (
        "search for the thing and what is said of it in few words; look at the price of a result before opening it; read the "
        "features where words of the request are missing; choose every option that is asked for, then click[buy now] before "
        "the steps run out"
    ),
    "fashion": "colour and size are options on the product's page: choose both before buying",
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: what was wrong with the purchase, `never_opened` a product, `timeout`, or the stop reason."""
    if trajectory.stop is StopReason.FAILURE:
        return trajectory.end_label or str(trajectory.stop)
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    opened = any(read_page(observation).kind == "item" for observation in trajectory.observations)
    return "timeout" if opened else "never_opened"


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success how the product was found; after a failure which product was meant. Step advice is the shopper's, which
    has read no more than the agent."""
    steps = critical_steps(trajectory, Shopper(trajectory.task), ShopTracker(), achieved=("progress.option", "progress.ready"))
    if trajectory.success:
        visit = tracker_states(trajectory, ShopTracker())[-2].visit  # before the purchase
        chosen = [f"choose {format_options(visit.chosen)}"] if visit.chosen else []
        done = (f"search[{visit.query}]", f"open {truncate(visit.known[visit.product].title)}", *chosen, "buy now")
        return Skills(", ".join(done), steps, f"Bought in {len(trajectory)} steps.")
    goal, label = Goal.from_data(trajectory.task.data["goal"]), failure(trajectory)
    options = format_options({name or "option": value for name, value in goal.options})
    choice = f"choose {options}, then buy it" if goal.options else "and buy it"
    missing = {
        WRONG_OPTIONS: f"before buying, choose {options}",
        TOO_EXPENSIVE: f"look at the price before buying: no more than ${goal.limit:g}" if goal.limit < NO_LIMIT else "",
    }
    right = f"the right one is {goal.product.lower()}, {truncate(goal.title)}: search for it, open it, {choice}"
    return Skills(missing.get(label) or right, steps, f"Failed: {label}.")
