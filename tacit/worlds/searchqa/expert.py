"""An oracle: it is told whose passages say the answer, and the answer. It shows how one searches, never that one should
guess."""

from __future__ import annotations

from itertools import pairwise

from tacit.core.types import Observation, Task
from tacit.worlds.searchqa.world import MAX_STEPS


class Oracle:
    """Searches for each thing the question hangs on, in the order of the chain, then gives the answer. More things than there
    are turns are asked for together; where a file does not say what they are, the question itself is searched for."""

    def __init__(self, task: Task) -> None:
        self._answer = str(task.data["answers"][0])
        self._queries = _queries([str(title) for title in task.data.get("titles", ())] or [task.goal])
        self._asked = 0

    def act(self, observation: Observation) -> str:
        if self._asked < len(self._queries):
            self._asked += 1
            return f"search {self._queries[self._asked - 1]}"
        return f"answer {self._answer}"


def _queries(titles: list[str]) -> list[str]:
    """At most one for each turn before the last, each of as few titles as can be."""
    turns = min(MAX_STEPS - 1, len(titles))
    bounds = [len(titles) * i // turns for i in range(turns + 1)]
    return [" ".join(titles[a:b]) for a, b in pairwise(bounds)]
