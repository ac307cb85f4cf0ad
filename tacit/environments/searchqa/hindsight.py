"""What a question that was answered or not teaches, by rule: the searches that found it, or those that would have.

The rules know the passages that the question hangs on and the answer: hindsight is allowed to know more than the agent did. At
a step it is told what to do after what had been read by then.
"""

from __future__ import annotations

from tacit.core.hindsight import critical_steps
from tacit.core.skills import Skills
from tacit.core.types import Observation, Task, Trajectory
from tacit.environments.searchqa.failures import failure
from tacit.environments.searchqa.observed import made_plain, plain, read
from tacit.environments.searchqa.tracker import SearchTracker
from tacit.environments.searchqa.world import MAX_STEPS

_TRACKER = SearchTracker()
_LONGEST = 200
"""characters of an answer or a question that are told"""


class _Companion:
    """Searches for what the question hangs on and has not been read yet; answers when all has, or the turns run out."""

    def __init__(self, task: Task) -> None:
        self._left, self._turn = _queries(task), 0
        self._answer = _answer(task)

    def act(self, observation: Observation) -> str:
        seen = {passage.title for passage in read(observation.text)}
        self._left = [title for title in self._left if title not in seen]
        self._turn += 1
        search = self._left and self._turn < MAX_STEPS
        return f"search {self._left[0]}" if search else f"answer {self._answer}"


def hindsight(trajectory: Trajectory) -> Skills:
    task = trajectory.task
    steps = critical_steps(trajectory, _Companion(task), _TRACKER)
    if trajectory.success:
        done = dict.fromkeys(plain(step.action, _LONGEST) for step in trajectory.steps if step.effective)
        return Skills("; ".join(done), steps, f"Answered in {len(trajectory)} turns.")
    label, answer = failure(trajectory), _answer(task)
    way = f"{'; '.join(f'search {title}' for title in _queries(task))}; answer {answer}"
    told = f"it stood in what was read: answer {answer}" if label == "misread" else way
    if label == "no_answer":
        steps = {**steps, len(trajectory) - 1: f"answer {answer}"}
        told = f"answer before the turns run out: {way}"
    return Skills(told, steps, f"Failed: {label}.")


def _queries(task: Task) -> list[str]:
    return [made_plain(str(title), "").title for title in task.data.get("titles", ())] or [plain(task.goal, _LONGEST)]


def _answer(task: Task) -> str:
    return plain(str(task.data["answers"][0]), _LONGEST)
