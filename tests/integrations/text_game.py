"""A plain Gymnasium text environment, independent of tacit: guess a number with hints "higher" or "lower"."""

from __future__ import annotations

import gymnasium
from gymnasium import spaces


class Guess(gymnasium.Env):
    """+1 when right; truncated after eight guesses. `info` is empty and does not report success."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Text(40), spaces.Text(8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.secret, self.left = int(self.np_random.integers(1, 21)), 8
        return "Guess from 1 to 20.", {}

    def step(self, action):
        self.left -= 1
        if not action.isdigit():
            return "That is no number.", -0.1, False, self.left == 0, {}
        if int(action) == self.secret:
            return "Right!", 1.0, True, False, {}
        return ("Higher." if int(action) < self.secret else "Lower."), 0.0, False, self.left == 0, {}
