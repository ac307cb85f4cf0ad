"""Rooms from gym-sokoban's own generator, played in both simulators with the same moves; needs the package gym-sokoban."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tacit.worlds.sokoban.tasks import make_task
from tacit.worlds.sokoban.world import SokobanWorld

sokoban_env = pytest.importorskip("gym_sokoban.envs.sokoban_env", reason="gym-sokoban is not installed", exc_type=Exception)

MOVES = {1: "up", 2: "down", 3: "left", 4: "right"}  # gym-sokoban's action numbers
ROOMS, MAX_MOVES = 5, 60
SYMBOLS = "W.C*A@"


def rows_of(env) -> list[str]:
    on_target = (env.room_state == 5) & (env.room_fixed == 2)
    return [
        "".join("+" if stands else SYMBOLS[cell] for cell, stands in zip(cells, row, strict=True))
        for cells, row in zip(env.room_state, on_target, strict=True)
    ]


@pytest.mark.parametrize("seed", range(ROOMS))
def test_rooms_rewards_and_endings_equal_gym_sokoban(seed):
    rng = random.Random(seed)
    random.seed(seed)
    np.random.seed(seed)
    env = sokoban_env.SokobanEnv(dim_room=(6, 6), max_steps=10 * MAX_MOVES, num_boxes=1, reset=False)
    env.reset()
    world = SokobanWorld()
    world.reset(make_task(rows_of(env)))
    for _ in range(MAX_MOVES):
        number = rng.choice(list(MOVES))
        _, reward, over, _ = env.step(number)
        ours = world.step(MOVES[number])
        assert ours.observation.text.split("\nrefused: ")[0].split("\n") == rows_of(env)
        assert ours.reward == pytest.approx(reward) and ours.done == over
        if over:
            break
