"""Serve ALFWorld with OpenEnv and play it with OpenEnv's client; then use that server as a Tacit world:
pip install 'tacit-agents[openenv]'"""

import threading
import time

import uvicorn
from openenv.core import GenericEnvClient

from tacit.core.types import Observation
from tacit.integrations.openenv import openenv_app, openenv_environment
from tacit.worlds import get_environment

PORT = 8765
server = uvicorn.Server(uvicorn.Config(openenv_app("alfworld", split="unseen", tasks=20), port=PORT, log_level="critical"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.1)

household = get_environment("alfworld")
with GenericEnvClient(f"http://127.0.0.1:{PORT}").sync() as client:
    result = client.reset(task=3)
    print(result.observation["goal"], result.observation["text"], sep="\n")
    expert = household.expert()(household.tasks_of("unseen", 20, 0)[3])  # replace it with your agent
    while not result.done:
        seen = Observation(result.observation["text"], tuple(result.observation["admissible_actions"]))
        result = client.step({"action": expert.act(seen)})
    print("won through OpenEnv:", result.observation["success"], "reward:", result.reward)

theirs = openenv_environment("theirs", f"http://127.0.0.1:{PORT}", "Do what the first text asks.", max_steps=50)
world = theirs.make()
observation = world.reset(theirs.tasks("train", 1, 0)[0])
transition = world.step(observation.actions[0])
print("played here:", transition.observation.text)
world.close()
server.should_exit = True
