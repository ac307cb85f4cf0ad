"""Why a question was not answered.

no_answer    out of turns
no_search    answered at once, and wrong
not_found    wrong, and no passage that was read has the answer
misread      wrong, though it stood there
"""

from __future__ import annotations

from tacit.core.types import StopReason, Trajectory
from tacit.environments.searchqa.answers import normalised
from tacit.environments.searchqa.observed import read
from tacit.environments.searchqa.world import WRONG


def failure(trajectory: Trajectory) -> str:
    """The label of a failed trajectory. `yes` and `no` stand nowhere: such an answer was there once all its passages were."""
    if trajectory.stop is StopReason.STEP_LIMIT:
        return "no_answer"
    labels = {trajectory.detail, trajectory.steps[-1].label if trajectory.steps else ""}
    if WRONG not in labels:
        return str(trajectory.stop)
    passages = [passage for step in trajectory.steps for passage in read(step.observation.text)]
    if not passages:
        return "no_search"
    data = trajectory.task.data
    answers = [normalised(str(answer)) for answer in data["answers"]]
    if set(answers) <= {"yes", "no"}:
        read_of = {passage.title for passage in passages}
        return "misread" if read_of >= set(data.get("titles", ())) else "not_found"
    text = f" {normalised(' '.join(f'{title} {text}' for title, text in passages))} "
    return "misread" if any(f" {answer} " in text for answer in answers) else "not_found"
