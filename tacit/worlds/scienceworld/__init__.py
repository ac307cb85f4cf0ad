"""ScienceWorld: 30 elementary science tasks, in the simulator of the `scienceworld` package (an extra; needs Java).

The package is imported and the JVM started only when an episode begins; tasks, panels and wordings need neither.
"""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.worlds.scienceworld.expert import SERVED, GoldPath
from tacit.worlds.scienceworld.prompt import FullWording, TerseWording, example_texts
from tacit.worlds.scienceworld.skills import ALPHABET, HANDBOOK, failure, hindsight
from tacit.worlds.scienceworld.tasks import FAMILIES, NAME, PANELS, SIZES, SPLITS, tasks
from tacit.worlds.scienceworld.tracker import FORMS, ScienceTracker
from tacit.worlds.scienceworld.world import EXTRA, REQUIRES, lacks, read_room

MAX_STEPS = 120  # the largest of ETO's limits; ETO's evaluation splits have one per task


def place(action: str, observation: Observation) -> str:
    """The room at the start of an episode or after `go`."""
    return read_room(observation.text) if action.split()[:1] in ([], ["go"]) else ""


ENVIRONMENT = Environment(
    name=NAME,
    summary="ScienceWorld: 30 tasks of elementary science in ten rooms, in its own simulator",
    max_steps=MAX_STEPS,
    make=SERVED,
    tasks=tasks,
    splits=SPLITS,
    panel_split="eto_test",
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"gold": GoldPath},
    alphabet=ALPHABET,
    tracker=ScienceTracker(),
    forms=FORMS,
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=example_texts,
    action_tokens=40,
    slow=True,
    family_tasks=tasks,
    published=SIZES,
    panels=PANELS,
    step_rewards=True,
    place=place,
    requires=REQUIRES,
    extra=EXTRA,
    lacks=lacks,
)
