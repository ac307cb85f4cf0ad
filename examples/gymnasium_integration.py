"""ALFWorld as a Gymnasium environment, and a Gymnasium environment as a Tacit world: pip install 'tacit-agents[gymnasium]'"""

import gymnasium

from tacit.core.types import Observation
from tacit.integrations.gymnasium import TacitEnv, gymnasium_environment
from tacit.worlds import get_environment

env = TacitEnv("alfworld", split="unseen", tasks=20, goal_in_text=False)
text, info = env.reset(seed=7)
print(info["goal"], text, info["admissible_actions"][:5], sep="\n")
expert = get_environment("alfworld").expert()(env.episode.task)  # replace it with your agent
done = False
while not done:
    action = expert.act(Observation(text, tuple(info["admissible_actions"])))
    text, reward, terminated, truncated, info = env.step(action)
    done = terminated or truncated
print("won through Gymnasium:", info["success"])


class Echo(gymnasium.Env):
    """The action must repeat the observed word."""

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
word = world.reset(ECHO.tasks("train", 1, 0)[0]).text
print("won here:", world.step(word).success)
