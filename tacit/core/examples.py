"""Text of a world along its expert's episodes: what a tiny tokenizer is trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tacit.core.types import Task
from tacit.core.wording import Wording
from tacit.core.world import Expert, Tracker, World


def texts_of_play(
    world: World,
    tasks: Iterable[Task],
    expert: Callable[[Task], Expert],
    wordings: Sequence[Wording],
    tracker: Tracker | None = None,
    present: bool = True,
    bare: bool = False,
) -> list[str]:
    """Each task, and of each turn: the present as it is told (where `present`), the turn as it is told afterwards, the action
    by itself (where `bare`), and the state block of a tracker."""
    texts: list[str] = []
    for task in tasks:
        hero, observation, done, number = expert(task), world.reset(task), False, 1
        state = tracker.start(task, observation) if tracker else None
        texts += [wording.task(task) for wording in wordings]
        while not done:
            action = hero.act(observation)
            texts += [wording.now(number, observation, False) for wording in wordings if present]
            texts += [wording.turn(number, observation, action) for wording in wordings]
            texts += [action] if bare else []
            transition = world.step(action)
            if tracker:
                texts.append(tracker.render(state))
                state = tracker.update(state, action, transition)
            observation, done, number = transition.observation, transition.done, number + 1
    world.close()
    return [text for text in texts if text]
