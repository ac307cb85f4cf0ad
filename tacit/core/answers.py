"""What a world must return, said in words where it returns anything else."""

from __future__ import annotations

from tacit.core.types import Observation, Transition


def as_observation(answer: object) -> Observation:
    """What `reset` returned. Anything but an Observation is explained."""
    return _observation(answer, "reset must return an Observation(text)")


def as_transition(answer: object) -> Transition:
    """What `step` returned. Anything but a Transition, or one that holds no Observation, is explained."""
    if not isinstance(answer, Transition):
        raise TypeError(f"step must return a Transition(observation, done, success), and returned {_shape(answer)}")
    _observation(answer.observation, "the Transition that step returns must hold an Observation(text)")
    return answer


def _observation(answer: object, rule: str) -> Observation:
    if not isinstance(answer, Observation):
        raise TypeError(f"{rule}, and returned {_shape(answer)}")
    if not isinstance(answer.text, str):
        raise TypeError(f"{rule}, and its text is {_shape(answer.text)}")
    return answer


def _shape(answer: object) -> str:
    """`a tuple of (str, dict), as Gym's worlds do`"""
    if not isinstance(answer, tuple):
        return "nothing" if answer is None else f"a {type(answer).__name__}"
    kinds = ", ".join(type(part).__name__ for part in answer)
    return f"a tuple of ({kinds})" + (", as Gym's worlds do" if len(answer) in (2, 4, 5) else "")
