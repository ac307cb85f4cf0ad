"""The oracle: it knows the answer and which passages contain it."""

from __future__ import annotations

from itertools import pairwise

from tacit.core.types import Observation, Task
from tacit.worlds.searchqa.world import MAX_STEPS


class Oracle:
    """Searches for each supporting title in order, then answers. If there are more titles than turns, it joins some into one
    query. If the file names no titles, it searches for the question."""

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
    """One query per turn before the last, with as few titles as possible in each."""
    turns = min(MAX_STEPS - 1, len(titles))
    bounds = [len(titles) * i // turns for i in range(turns + 1)]
    return [" ".join(titles[a:b]) for a, b in pairwise(bounds)]
