"""By what two steps are the same where they must be equal: what was seen, what was told of the present, or all that was read.

GiGPO and HGPO compare observations. A policy that reads a state block is told more than it sees: the same shelf, looked at
before and after the knife was found, is one observation and two states. With the key `state` an exact partition knows as much
of the present as the policy does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tacit.core.types import Step

Key = Literal["observation", "state", "prompt"]
"""observation: the text of what is seen. state: that and the state block, as the prompt tells them (a wording that counts turns
tells one turn from another). prompt: all of it, with the task and the turns before."""


def key_texts(steps: Sequence[Step], key: Key = "observation") -> list[str]:
    if key == "observation":
        return [step.observation.text for step in steps]
    return [step.prompt.now if key == "state" else step.prompt.text for step in steps]
