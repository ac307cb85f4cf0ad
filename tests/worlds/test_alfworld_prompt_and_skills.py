"""ALFWorld wordings, skill alphabet and failure reasons."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from alfworld_problem import SENTENCES, problem

from tacit.core.types import PLAIN, Completion, Observation, Prompt, Step, StopReason, Task, Trajectory
from tacit.prompts.history import History
from tacit.worlds import get_environment
from tacit.worlds.alfworld.published import parse_problem
from tacit.worlds.alfworld.skills import SKILLS, failure
from tacit.worlds.alfworld.world import AlfWorld, brief

ENVIRONMENT = get_environment("alfworld")


def project_commands(commands) -> tuple[str, ...]:
    """The skills of (command, effective) pairs."""
    steps = [SimpleNamespace(action=action, effective=effective) for action, effective in commands]
    return ENVIRONMENT.alphabet(SimpleNamespace(steps=steps))


def make_task(family: str) -> Task:
    game = parse_problem(problem(family), SENTENCES[family])
    return Task("alfworld", family, family, "test", 0, game.sentence, {"game": game.to_data()})


def episode(family: str, *commands: str, invalid: tuple[int, ...] = ()) -> Trajectory:
    world, task = AlfWorld(), make_task(family)
    observation, steps, success = world.reset(task), [], False
    for number, command in enumerate(commands):
        answer = world.step(command if number not in invalid else "")
        completion = Completion(np.zeros(1, np.int64), np.zeros(1, np.float32), command, "stop")
        steps.append(
            Step(
                observation, Prompt("", ""), np.zeros(1, np.int64), completion, command, number not in invalid, answer.effective
            )
        )
        observation, success = answer.observation, answer.success
    stop = StopReason.SUCCESS if success else StopReason.STEP_LIMIT
    return Trajectory(task, tuple(steps), success, float(success), stop, observation)


def test_skills_match_the_worked_example_of_the_paper():
    commands = (
        "go to drawer 1",
        "open drawer 1",
        "take ladle 1 from drawer 1",
        "go to sinkbasin 1",
        "clean ladle 1 with sinkbasin 1",
        "go to countertop 1",
        "put ladle 1 on countertop 1",
    )
    assert project_commands((command, True) for command in commands) == (
        "EXPLORE", "EXPLORE", "TAKE", "TRANSPORT", "TRANSFORM", "TRANSPORT", "DELIVER",
    )  # fmt: skip


def test_only_effective_take_and_move_change_the_carry_flag():
    commands = [("take pen 1 from desk 1", False), ("go to desk 1", True), ("take pen 1 from desk 1", True),
                ("move pen 1 to shelf 1", False), ("open drawer 1", True), ("move pen 1 to drawer 1", True),
                ("go to desk 1", True)]  # fmt: skip
    assert project_commands(commands) == ("TAKE", "EXPLORE", "TAKE", "DELIVER", "TRANSPORT", "DELIVER", "EXPLORE")


@pytest.mark.parametrize(
    ("command", "skill"),
    [("look", "EXPLORE"), ("examine desk 1", "EXPLORE"), ("inventory", "EXPLORE"), ("xyzzy", "EXPLORE"), ("", "EXPLORE"),
     ("heat egg 1 with microwave 1", "TRANSFORM"), ("cool egg 1 with fridge 1", "TRANSFORM"),
     ("use desklamp 1", "TRANSFORM"), ("slice egg 1 with knife 1", "TRANSFORM"), ("move a to b", "DELIVER")],
)  # fmt: skip
def test_command_maps_to_skill(command, skill):
    assert project_commands([(command, True)]) == (skill,)


def test_alphabet_labels_every_command_including_invalid_ones():
    assert ENVIRONMENT.alphabet is not None and len(SKILLS) == 5
    trajectory = episode("pick", "go to drawer 1", "blah", "open drawer 1", invalid=(1,))
    assert ENVIRONMENT.alphabet(trajectory) == ("EXPLORE", "EXPLORE", "EXPLORE"), "well formed or not"


PEN = ("go to drawer 1", "open drawer 1", "take pen 1 from drawer 1")
FIRST_APPLE = ("go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to sidetable 1")


@pytest.mark.parametrize(
    ("family", "commands", "label"),
    [
        ("pick", ("go to drawer 1", "take pen 1 from drawer 1"), "never_picked_target"),
        ("pick", ("go to drawer 1", "open drawer 1", "take pencil 1 from drawer 1"), "never_picked_target"),
        ("pick", PEN, "timeout"),
        ("look", PEN, "timeout"),
        ("pick2", ("go to fridge 1",), "never_picked_target"),
        ("pick2", FIRST_APPLE, "timeout"),
        ("pick2", (*FIRST_APPLE, "move apple 2 to sidetable 1"), "two_partial_deliver"),
        (
            "pick2",
            (*FIRST_APPLE, "move apple 2 to sidetable 1", "take apple 2 from sidetable 1"),
            "timeout",
        ),
        ("heat", FIRST_APPLE, "picked_no_transform"),
        ("heat", (*FIRST_APPLE, "go to microwave 1", "heat apple 2 with microwave 1"), "timeout"),
        ("heat", ("go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "cool apple 2 with fridge 1"),
         "picked_no_transform"),
        ("clean", ("go to countertop 1", "take knife 1 from countertop 1"), "picked_no_transform"),
        ("clean", ("go to countertop 1", "take knife 1 from countertop 1", "clean knife 1 with sinkbasin 1"), "timeout"),
    ],
)  # fmt: skip
def test_failure_label_names_the_missing_step(family, commands, label):
    trajectory = episode(family, *commands)
    assert failure(trajectory) == label
    assert ENVIRONMENT.failure is failure


def test_failure_label_is_world_error_when_the_world_breaks():
    whole = episode("pick", *PEN)
    broken = Trajectory(whole.task, whole.steps, False, 0.0, StopReason.WORLD_ERROR, whole.final)
    assert failure(broken) == "world_error"


def test_prompt_without_history_does_not_mention_past_turns():
    task = make_task("pick")
    for turns, has_history in ((0, False), (1, True)):
        reader, world = History(ENVIRONMENT.wording("full"), turns).begin(task, PLAIN), AlfWorld()
        reader.read(world.reset(task))
        transition = world.step("go to drawer 1")
        reader.record("go to drawer 1", transition)
        assert ("shown above" in reader.read(transition.observation).text) is has_history


def test_full_wording_follows_the_template():
    wording, world, task = ENVIRONMENT.wording("full"), AlfWorld(), make_task("pick")
    first = world.reset(task)
    assert wording.task(task) == (
        "You are an expert agent operating in the ALFRED Embodied Environment. Your task is to: do the pick task."
    )
    now = wording.now(1, first, True)
    assert now.startswith("Your current observation is: You are in the middle of a room.")
    assert "Welcome" not in now and "Your task" not in now and "already taken" not in now
    assert "Your admissible actions of the current situation are: ['go to countertop 1'\n 'go to drawer 1'" in now
    assert "'help'" not in now and now.endswith("'look'].")
    assert "admissible" not in wording.now(1, first, False)

    second = world.step("go to drawer 1").observation
    assert wording.turn(2, second, "open drawer 1") == (
        "[Observation 2: 'You arrive at drawer 1. The drawer 1 is closed.', Action 2: 'open drawer 1']"
    )
    now = wording.now(3, second, False)
    assert "you have already taken 2 step(s)" in now
    assert now.endswith("You are now at step 3 and your current observation is: " + second.text)
    assert "actions you took are shown above" in now
    assert wording.alone(3, second, False) == (
        "Prior to this step, you have already taken 2 step(s). You are now at step 3 and your current observation is: "
        + second.text
    ), "to one who is shown no past turn"
    assert wording.alone(1, first, True) == wording.now(1, first, True)
    assert "<think> </think>" in wording.request("tags") and "<action> </action>" in wording.request("tags")
    assert "<action>" not in wording.request("bare")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("You arrive at drawer 1. The drawer 1 is closed.", "drawer 1 closed"),
        ("You arrive at desk 1. On the desk 1, you see a cd 2, a cd 1, and a pen 1.", "desk 1: cd 2, cd 1, pen 1"),
        ("You open the safe 1. The safe 1 is open. In it, you see a cd 2, and a pen 1.", "safe 1 open: cd 2, pen 1"),
        ("On the desk 1, you see nothing.", "desk 1: nothing"),
        ("You pick up the cd 2 from the desk 1.", "have cd 2"),
        ("You move the cd 2 to the safe 1.", "safe 1: + cd 2"),
        ("You clean the cd 2 using the sinkbasin 1.", "cd 2 clean"),
        ("You turn on the desklamp 1.", "desklamp 1 on"),
        ("You are not carrying anything.", "have nothing"),
        ("You are carrying: a pen 1.", "have pen 1"),
        ("You are facing the shelf 2, and shelf 1. Next to it, you see a pen 1.", "at shelf 2, shelf 1: pen 1"),
        ("Nothing happens.", "nothing happens"),
        ("This is a hot egg 1.", "This is a hot egg 1."),
    ],
)
def test_brief_shortens_observations(text, short):
    assert brief(text) == short


def test_terse_wording_text():
    wording, world, task = ENVIRONMENT.wording("terse"), AlfWorld(), make_task("pick")
    first = world.reset(task)
    assert wording.now(1, first, False) == ("room: countertop 1, drawer 1-2, fridge 1, microwave 1, sidetable 1, sinkbasin 1 >")
    assert wording.turn(1, Observation("Nothing happens."), "look") == "nothing happens > look"
    text = wording.now(1, first, True)
    assert "go to drawer 1; go to drawer 2" in text and "help" not in text
    assert (wording.task(task), wording.request("bare")) == ("do the pick task.", "")
