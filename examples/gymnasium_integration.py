"""Our household in Gymnasium's loop, and a Gymnasium game as a world of ours: pip install 'tacit-agents[gymnasium]'"""

import gymnasium

from tacit.core.types import Observation
from tacit.integrations.gymnasium import TacitEnv, gymnasium_environment
from tacit.worlds import get_environment

env = TacitEnv("alfworld", split="unseen", tasks=20, goal_in_text=False)
text, info = env.reset(seed=7)
print(info["goal"], text, info["admissible_actions"][:5], sep="\n")
expert = get_environment("alfworld").expert()(env.episode.task)  # stands where your agent would
over = False
while not over:
    action = expert.act(Observation(text, tuple(info["admissible_actions"])))
    text, reward, terminated, truncated, info = env.step(action)
    over = terminated or truncated
print("won through Gymnasium:", info["success"])


class Echo(gymnasium.Env):
    """Says a word and wants to hear it."""

    observation_space, action_space = gymnasium.spaces.Text(20), gymnasium.spaces.Text(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = str(self.np_random.choice(["red", "green", "blue"]))
        return self.word, {}

    def step(self, action):
        return "", float(action == self.word), True, False, {}


ECHO = gymnasium_environment(
    "echo", Echo, "Say what you are told.", max_steps=1
)  # tacit train --world gymnasium_integration.py:ECHO …
world = ECHO.make()
said = world.reset(ECHO.tasks("train", 1, 0)[0]).text
print("won here:", world.step(said).success)
