"""Sokoban: rooms of 6 by 6 with one or two boxes, all solvable, with pushes that cannot be taken back."""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation, StopReason, Trajectory
from tacit.core.world import Environment, texts_of_play
from tacit.worlds.sokoban.expert import Solver, deadlocked
from tacit.worlds.sokoban.prompt import FullWording, TerseWording
from tacit.worlds.sokoban.skills import ALPHABET, HANDBOOK, hindsight
from tacit.worlds.sokoban.tasks import FAMILIES, NAME, PANELS, SPLITS, tasks
from tacit.worlds.sokoban.tracker import SokobanTracker
from tacit.worlds.sokoban.world import DIRECTIONS, MAX_STEPS, SokobanWorld, read, read_position

DEADLOCK = "deadlock"
_NAMES = {"W": "wall", "A": "box", "C": "target", ".": "floor", "*": "placed box"}


def failure(trajectory: Trajectory) -> str:
    """`deadlock` where the room could no longer be solved at the end, `timeout` where it could; what stopped it otherwise."""
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    return DEADLOCK if deadlocked(*read_position(trajectory.final.text)) else "timeout"


def place(action: str, observation: Observation) -> str:
    """The room as it stands, where something has moved: a step back leads to the same place only where no box was pushed."""
    shown = read(observation.text)
    return "" if shown.refused else "/".join(shown.rows)


def example_texts(seed: int) -> list[str]:
    """Both wordings and the state block along the expert's episodes, for training a tiny tokenizer."""
    wordings = (TerseWording(), FullWording())
    return texts_of_play(SokobanWorld(), tasks("train", 60, seed), Solver, wordings, SokobanTracker(), present=False)


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """What is beside the agent: `what is up? wall`."""
    layout, at = read_position(observation.text)
    direction = rng.choice(list(DIRECTIONS))
    ahead = layout.beside(at.agent, direction)
    return [(f"what is {direction}", _NAMES["".join(read(observation.text).rows)[ahead]] if ahead >= 0 else "wall")]


ENVIRONMENT = Environment(
    name=NAME,
    summary="Sokoban: push every box onto a target in a room of 6 by 6; what is pushed wrong cannot be pulled back",
    max_steps=MAX_STEPS,
    make=SokobanWorld,
    tasks=tasks,
    splits=SPLITS,
    families=tuple(FAMILIES.values()),
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"solver": Solver},
    alphabet=ALPHABET,
    tracker=SokobanTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=example_texts,
    questions=questions,
    action_tokens=8,
    panels=PANELS,
    place=place,
)
