"""What a world must return, said in words where it returns anything else."""

from __future__ import annotations

from dataclasses import replace

from tacit.core.types import Observation, Transition


def as_observation(answer: object) -> Observation:
    """What `reset` returned. Anything but an Observation is explained."""
    return _observation(answer, "reset must return an Observation(text)")


def as_transition(answer: object) -> Transition:
    """What `step` returned, in plain numbers. Anything but a Transition, or one that holds no Observation, is explained."""
    if not isinstance(answer, Transition):
        raise TypeError(f"step must return a Transition(observation, done, success), and returned {_shape(answer)}")
    seen = _observation(answer.observation, "the Transition that step returns must hold an Observation(text)")
    if not isinstance(answer.label, str):
        raise TypeError(f"the label of the Transition that step returns must be text, and is {answer.label!r}")
    return replace(answer.in_plain_numbers(), observation=seen)


def _observation(answer: object, rule: str) -> Observation:
    if not isinstance(answer, Observation):
        raise TypeError(f"{rule}, and returned {_shape(answer)}")
    if not isinstance(answer.text, str):
        raise TypeError(f"{rule}, and its text is {_shape(answer.text)}")
    if isinstance(answer.actions, str) or not all(isinstance(action, str) for action in answer.actions):
        raise TypeError(f"{rule}, whose actions are a tuple of texts, and they are {answer.actions!r}")
    return answer if isinstance(answer.actions, tuple) else replace(answer, actions=tuple(answer.actions))


def _shape(answer: object) -> str:
    """`a tuple of (str, dict), as Gym's worlds do`"""
    if not isinstance(answer, tuple):
        return "nothing" if answer is None else f"a {type(answer).__name__}"
    kinds = ", ".join(type(part).__name__ for part in answer)
    return f"a tuple of ({kinds})" + (", as Gym's worlds do" if len(answer) in (2, 4, 5) else "")
