"""Text of the levels for training a tiny tokenizer: both wordings along the expert's episodes."""

from __future__ import annotations

from tacit.environments.minihack.expert import Explorer
from tacit.environments.minihack.prompt import FullWording, TerseWording
from tacit.environments.minihack.tasks import tasks
from tacit.environments.minihack.world import MiniHackWorld

LEVELS_PLAYED = 60


def example_texts(seed: int) -> list[str]:
    world, wordings, texts = MiniHackWorld(), (TerseWording(), FullWording()), []
    for task in tasks("train", LEVELS_PLAYED, seed):
        expert, observation, done, number = Explorer(task), world.reset(task), False, 1
        texts += [wording.task(task) for wording in wordings]
        while not done:
            action = expert.act(observation)
            texts += [wording.now(number, observation, False) for wording in wordings]
            texts += [wording.turn(number, observation, action) for wording in wordings]
            transition = world.step(action)
            observation, done, number = transition.observation, transition.done, number + 1
    world.close()
    return [text for text in texts if text]
