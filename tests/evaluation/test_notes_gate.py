"""`tacit inspect notes`: notes that the policy follows pass the gate, ignored notes do not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scripted import Words

from tacit.cli.main import main
from tacit.companions.hindsight import Hindsight, RoutedSkills, RuleAnalyzer
from tacit.core.protocols import PolicyHooks
from tacit.core.types import Completion, Group, IterationInfo, Observation, Prompt, Skills, Step, StopReason, Task, Trajectory
from tacit.evaluation.notes import KINDS, Gate, NoteResult, area_under_curve, score_notes
from tacit.prompts.history import OPEN


class Follower(Words, PolicyHooks):
    """Gives high probability to the action named by the note in its prompt."""

    follows = True

    def logprobs(self, prompts, completions, temperature=1.0):
        def likes(prompt, completion) -> bool:
            note = self.decode(prompt).partition(OPEN)[2].split()
            return self.follows and bool(note) and note[0] == self.decode(completion)

        return [np.full(len(c), 0.0 if likes(p, c) else -1.0) for p, c in zip(prompts, completions, strict=True)]


class Expert:
    """Knows the solution of its task."""

    def __init__(self, task: Task) -> None:
        self.way = task.goal

    def act(self, observation: Observation) -> str:
        return self.way


def played(policy: Words) -> list[Group]:
    """Two tasks, `left` and `right`. Every episode tries both actions in turn."""
    groups = []
    for goal in ("left", "right"):
        task, steps = Task("toy", goal, "only", "train", 0, goal), []
        for action in ("left", "right") * 2:
            prompt = Prompt("walk", "here")
            completion = Completion(policy.encode_completion(action), np.zeros(2, np.float32), action, "stop")
            steps.append(Step(Observation("here"), prompt, policy.encode_prompt(prompt.text), completion, action, True))
        members = [Trajectory(task, tuple(steps), False, 0.0, StopReason.STEP_LIMIT, Observation("end"))] * 2
        groups.append(Group(task, tuple(members)))
    return groups


@pytest.mark.parametrize(
    ("follows", "expected"),
    [(True, {"true": 1.0, "empty": 0.5, "placebo": 0.0, "oracle": 1.0}), (False, dict.fromkeys(KINDS, 0.5))],
)
def test_auc_separates_policies_that_follow_notes(follows, expected):
    policy = Follower()
    policy.follows = follows
    groups = played(policy)
    hindsight = Hindsight(RuleAnalyzer(lambda trajectory: Skills(trajectory.task.goal)))
    hindsight.observe(groups, policy, IterationInfo())
    teachers = {kind: RoutedSkills(hindsight, "critical_first", kind, Expert) for kind in KINDS}
    found, steps, agreeing = score_notes(groups, teachers, policy)
    assert {kind: auc for kind, (auc, _) in found.items()} == expected
    assert (steps, agreeing) == (16, 0.5)
    assert all(low <= auc <= high for auc, (low, high) in found.values())


def test_completion_without_tokens_has_zero_shift():
    """It must not take the shift of the next step's first token, nor raise at the end of a group."""
    policy = Follower()
    groups = played(policy)
    empty = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), "", "stop")
    for place in (1, 3):
        members = [
            replace(t, steps=tuple(replace(s, completion=empty) if n == place else s for n, s in enumerate(t.steps)))
            for t in groups[0].trajectories
        ]
        cut = [replace(groups[0], trajectories=tuple(members)), groups[1]]
        hindsight = Hindsight(RuleAnalyzer(lambda trajectory: Skills(trajectory.task.goal)))
        hindsight.observe(cut, policy, IterationInfo())
        found, _, _ = score_notes(cut, {"true": RoutedSkills(hindsight, "critical_first", "true", Expert)}, policy)
        assert found["true"][0] == 1.0, "of `left`, both written actions `right` without tokens are shifted by 0"


def test_area_under_the_curve():
    good = np.array([True, True, False, False])
    assert area_under_curve(np.array([2.0, 3.0, 0.0, 1.0]), good) == 1.0
    assert area_under_curve(np.zeros(4), good) == 0.5
    assert area_under_curve(np.arange(4.0), np.ones(4, bool)) is None


@pytest.mark.parametrize(
    ("true", "handbook", "passes"), [(0.65, 0.5, True), (0.6, 0.5, False), (0.65, 0.44, False), (None, 0.5, False)]
)
def test_gate_requires_auc_and_handbook_rules(true, handbook, passes):
    results = {"none": (0.4, None), "true": (0.4, true), "empty": (0.4, 0.52), "handbook": (handbook, None)}
    rows = tuple(NoteResult(note, success, (0.0, 1.0), auc) for note, (success, auc) in results.items())
    assert Gate(rows, 24, 100, 0.5).passes is passes
    assert Gate(rows[:-1], 24, 100, 0.5).passes is (true == 0.65), "without a handbook the AUC decides"


NOTES = "inspect notes tiny --world countdown --members 1 --engine.device cpu --tasks".split()  # noqa: SIM905
SHORT = [*NOTES[:-1], *("--max-tokens", "8", "--tasks")]


def test_notes_gate_needs_two_tasks(capsys):
    assert main([*NOTES, "1"]) != 0
    assert "a placebo is another task's note, so use --tasks 2 or more" in capsys.readouterr().err
    assert main([*NOTES, "0"]) != 0
    assert "--tasks 0 must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_inspect_notes_prints_rule_and_verdict(capsys):
    assert main([*SHORT, "2"]) == 0
    output = capsys.readouterr().out
    assert "AUC, true − empty: not measured" in output and "the gate fails: do not compare note-based methods" in output
    assert main([*SHORT, "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["note"] for row in found["results"]] == ["none", "true", "empty", "placebo", "oracle", "handbook"]
    assert found["passes"] is False and found["tasks"] == 2
