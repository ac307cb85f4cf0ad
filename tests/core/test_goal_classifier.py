"""GoalClassifier predicts the family of a task from its goal, or refuses."""

from __future__ import annotations

import pytest

from tacit.core.errors import TacitError
from tacit.core.tasks import GoalClassifier, normalize_goal
from tacit.worlds import get_environment
from tacit.worlds.scienceworld.world import SIZES


def test_normalize_goal_strips_prefix_and_extra_spaces():
    assert normalize_goal("Your task is to: put a mug in desk.") == normalize_goal("put a  mug in desk.")
    assert normalize_goal("Your task is to boil water.  First") == "boil water. First"


@pytest.mark.slow
@pytest.mark.parametrize(("world", "split", "size"), [("alfworld", "unseen", 200), ("scienceworld", "test", SIZES["test"])])
def test_goal_classifier_predicts_families_of_unseen_goals(world, split, size):
    environment = get_environment(world)
    classifier = GoalClassifier((task.goal, task.family) for task in environment.tasks("train", 512, 0))
    tasks = environment.tasks(split, size, 1)
    assert classifier.accuracy >= 0.98 and all(classifier.classify(task.goal) == task.family for task in tasks)


def test_goal_classifier_refuses_families_it_cannot_separate():
    depths = GoalClassifier((task.goal, task.family) for task in get_environment("textcraft").tasks("train", 200, 0))
    with pytest.raises(
        TacitError, match=r"goal texts do not determine which of depth_2, depth_3, depth_4 they belong to \(\d+% of held-out"
    ):
        depths.classify("craft ash stool")
    with pytest.raises(TacitError, match="goal texts do not determine which of the families"):
        GoalClassifier([]).classify("craft ash stool")


def test_goal_classifier_refuses_an_ambiguous_goal():
    sides = GoalClassifier([(f"go left {n}", "left") for n in range(40)] + [(f"go right {n}", "right") for n in range(40)])
    assert sides.classify("go left now") == "left"
    with pytest.raises(TacitError, match=r"goal 'go' could be (left|right) \(50%\) or"):
        sides.classify("go")
