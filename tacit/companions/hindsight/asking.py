"""What an analyzer is asked, in our words: the episode as it went, three fields to fill in, and the limits of each."""

from __future__ import annotations

from tacit.companions.record import about_a_record, as_line, fitted
from tacit.core.types import Trajectory

LONGEST = 600
"""characters of one observation or response: what matters is said early"""


def question(trajectory: Trajectory, most: int, room: int) -> str:
    """The request for one episode, whose turns take about `room` characters: where they do not fit, the middle goes."""
    turns = fitted([_turn(t, trajectory) for t in range(len(trajectory))], room)
    outcome = "success" if trajectory.success else "failure"
    head = [f"Task: {as_line(trajectory.task.goal)}", f"Outcome: {outcome}"]
    return about_a_record(request(trajectory.success, most), turns, head)


def request(success: bool, most: int) -> str:
    """What is wanted of any episode."""
    wanted = (
        "the workflow that made it work: which decisions, in which order, so that the same kind of task can be done again"
        if success
        else "what to avoid: the mistake that cost the episode, and the signs by which it can be noticed in time"
    )
    return f"""An agent has finished an episode. Look back on it and answer with one JSON object and nothing else:

{{"episode_summary": "...", "episode_skill": "...", "step_skills": {{"0": "...", "3": "..."}}}}

episode_summary  what happened, in a sentence or two.
episode_skill    {wanted}.
step_skills      advice for the steps on which the outcome turned, at most {most} of them. A key is the number of a step as
                 below (the first is 0); its value is one short imperative sentence that the agent could have followed at that
                 step, knowing only what it could see there. Do not retell what happened."""


def _turn(t: int, trajectory: Trajectory) -> str:
    step = trajectory.steps[t]
    answered = trajectory.steps[t + 1].observation if t + 1 < len(trajectory) else trajectory.final
    return as_line(
        {
            "step": t,
            "saw": step.observation.text[:LONGEST],
            "wrote": step.completion.text[:LONGEST],
            "action": step.action[:LONGEST],
            **({} if step.effective else {"refused": True}),
            **({"then saw": answered.text[:LONGEST]} if t + 1 == len(trajectory) else {}),
        }
    )
