"""ALFWorld's rules on a small house. Expected answers are those of the original engine."""

from __future__ import annotations

import pytest
from alfworld_problem import GOALS, SENTENCES, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.worlds.alfworld.published import parse_goal, parse_problem
from tacit.worlds.alfworld.world import AlfWorld, Game, Goal, Household, Receptacle, Thing, number_names


def play(family: str, *commands: str) -> Household:
    household = Household(parse_problem(problem(family), SENTENCES[family]))
    for command in commands:
        assert household.execute(command) != "Nothing happens.", command
    return household


def as_task(family: str) -> Task:
    game = parse_problem(problem(family), SENTENCES[family])
    return Task("alfworld", family, family, "test", 0, game.sentence, {"game": game.to_data()})


def test_intro_and_commands_match_the_original_engine():
    household = play("pick")
    assert household.intro() == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a countertop 1, a drawer 2, a drawer 1, a fridge 1, a microwave 1, a sidetable 1, and a sinkbasin 1.\n\n"
        "Your task is to: do the pick task."
    )
    assert household.commands == (
        "go to countertop 1",
        "go to drawer 1",
        "go to drawer 2",
        "go to fridge 1",
        "go to microwave 1",
        "go to sidetable 1",
        "go to sinkbasin 1",
        "help",
        "inventory",
        "look",
    )


def test_look_lists_nothing_in_the_middle_of_the_room():
    assert play("pick").execute("look") == ("You are in the middle of a room. Looking quickly around you, you see nothing.")


def test_location_with_two_receptacles_faces_both():
    household = play("pick", "go to countertop 1")
    assert household.execute("look") == "You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing."
    assert "go to sinkbasin 1" not in household.commands
    assert household.execute("go to sinkbasin 1") == "Nothing happens."
    assert "take apple 1 from countertop 1" in household.commands
    assert "take apple 1 from sinkbasin 1" in household.commands


def test_object_in_two_receptacles_stays_in_the_other_when_taken():
    household = play("pick", "go to countertop 1", "take apple 1 from countertop 1")
    assert household.execute("examine sinkbasin 1") == "On the sinkbasin 1, you see a apple 1."
    assert household.execute("look").endswith("Next to it, you see nothing.")
    assert household.execute("move apple 1 to sinkbasin 1") == "You move the apple 1 to the sinkbasin 1."
    assert household.execute("look").endswith("Next to it, you see a apple 1.")
    household.execute("take apple 1 from sinkbasin 1")
    household.execute("move apple 1 to countertop 1")
    assert household.execute("look").endswith("Next to it, you see a apple 1.")
    assert household.execute("examine countertop 1") == (
        "On the countertop 1, you see a apple 1, a bowl 1, a egg 1, and a knife 1."
    )


def test_closed_receptacle_hides_contents_until_opened():
    household = play("pick")
    assert household.execute("go to drawer 1") == "You arrive at drawer 1. The drawer 1 is closed."
    assert "open drawer 2" in household.commands  # at the same place
    assert not any(command.startswith("take") for command in household.commands)
    assert household.execute("open drawer 1") == (
        "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1, and a pencil 1."
    )
    assert household.execute("examine drawer 1") == "The drawer 1 is open. In it, you see a pen 1, and a pencil 1."
    assert household.execute("take pencil 1 from drawer 1") == "You pick up the pencil 1 from the drawer 1."
    assert household.execute("close drawer 1") == "You close the drawer 1."
    assert "move pencil 1 to drawer 1" not in household.commands
    assert household.execute("examine drawer 1") == "The drawer 1 is closed."


def test_only_held_objects_can_be_examined():
    household = play("pick", "go to countertop 1")
    assert household.execute("examine egg 1") == "Nothing happens."
    household.execute("take bowl 1 from countertop 1")
    assert household.execute("examine bowl 1") == "This is a normal bowl 1. In it, you see a egg 1."
    assert household.execute("inventory") == "You are carrying: a bowl 1."
    household.execute("move bowl 1 to countertop 1")
    assert household.execute("inventory") == "You are not carrying anything."


def test_agent_holds_one_object_and_receptacles_limit_kinds():
    household = play("pick", "go to countertop 1", "take egg 1 from countertop 1")
    assert household.execute("take knife 1 from countertop 1") == "Nothing happens."
    household.execute("go to sidetable 1")
    assert household.execute("move egg 1 to sidetable 1") == "Nothing happens."


@pytest.mark.parametrize(
    ("commands", "description"),
    [
        ((), "There's nothing special about egg 1."),
        (("clean egg 1 with sinkbasin 1",), "This is a clean egg 1."),
        (("go to microwave 1", "heat egg 1 with microwave 1"), "This is a hot egg 1."),
        (("go to fridge 1", "cool egg 1 with fridge 1"), "This is a cold egg 1."),
        (
            ("clean egg 1 with sinkbasin 1", "go to microwave 1", "heat egg 1 with microwave 1"),
            "This is a hot and clean egg 1.",
        ),
        (("clean egg 1 with sinkbasin 1", "go to fridge 1", "cool egg 1 with fridge 1"), "This is a cool and clean egg 1."),
        (
            ("go to fridge 1", "cool egg 1 with fridge 1", "go to microwave 1", "heat egg 1 with microwave 1"),
            "This is a hot egg 1.",
        ),
        (
            ("go to microwave 1", "heat egg 1 with microwave 1", "go to fridge 1", "cool egg 1 with fridge 1"),
            "This is a cold egg 1.",
        ),
    ],
)
def test_examine_describes_object_state(commands, description):
    household = play("pick", "go to countertop 1", "take egg 1 from countertop 1", *commands)
    assert household.execute("examine egg 1") == description


@pytest.mark.parametrize(
    ("commands", "description"),
    [
        ((), "This is a sliced egg 1."),
        (("clean egg 1 with sinkbasin 1",), "This is a clean sliced egg 1."),
        (("go to fridge 1", "cool egg 1 with fridge 1"), "This is a cool sliced egg 1."),
        (("go to microwave 1", "heat egg 1 with microwave 1"), "This is a hot sliced egg 1."),
        (
            ("clean egg 1 with sinkbasin 1", "go to fridge 1", "cool egg 1 with fridge 1"),
            "This is a cool and clean sliced egg 1.",
        ),
    ],
)
def test_examine_describes_sliced_objects(commands, description):
    slicing = ("take knife 1 from countertop 1", "slice egg 1 with knife 1", "move knife 1 to countertop 1")
    household = play("pick", "go to countertop 1", *slicing, "take egg 1 from countertop 1", *commands)
    assert household.execute("examine egg 1") == description


def test_knife_slices_object_in_closed_fridge():
    household = play("pick", "go to countertop 1", "take knife 1 from countertop 1", "go to fridge 1")
    assert household.execute("slice apple 2 with knife 1") == "You sliced the apple 2 with the knife 1."


def test_appliances_accept_only_suitable_objects():
    household = play("pick", "go to countertop 1", "take knife 1 from countertop 1")
    assert household.execute("clean knife 1 with sinkbasin 1") == "You clean the knife 1 using the sinkbasin 1."
    household.execute("go to fridge 1")
    assert "cool knife 1 with fridge 1" not in household.commands


def test_lamp_stays_on_when_used_again():
    household = play("look", "go to sidetable 1")
    assert [household.execute("use desklamp 1") for _ in range(2)] == ["You turn on the desklamp 1."] * 2
    assert "take desklamp 1 from sidetable 1" not in household.commands


def test_help_lists_commands():
    answer = play("pick").execute("help")
    assert answer.startswith("Available commands:\n  look: ")
    assert answer.endswith("slice an object using a sharp object\n")


@pytest.mark.parametrize(
    "command",
    ["", "   ", "dance", "GO TO FRIDGE 1", "go to  fridge 1", "go to fridge", "go to fridge 9", "open fridge 1", "go",
     "take apple 1 from countertop 1", "put pen 1 in/on sidetable 1", "look around", "go to fridge 1.", "{o}", "#look#"],
)  # fmt: skip
def test_unknown_command_leaves_state_unchanged(command):
    household = play("pick")
    before = household.commands
    assert household.execute(command) == "Nothing happens."
    assert household.commands == before


@pytest.mark.parametrize("command", [" look ", "look\n", "\tlook", "\u00a0look"])
def test_whitespace_around_command_is_ignored(command):
    assert play("pick").execute(command).startswith("You are in the middle of a room.")


WINS = {
    "pick": ("go to drawer 1", "open drawer 1", "take pen 1 from drawer 1", "go to sidetable 1", "move pen 1 to sidetable 1"),
    "look": ("go to drawer 1", "open drawer 1", "take pen 1 from drawer 1", "go to sidetable 1", "use desklamp 1"),
    "clean": (
        "go to drawer 2", "open drawer 2", "go to countertop 1", "take knife 1 from countertop 1",
        "clean knife 1 with sinkbasin 1", "go to drawer 2", "move knife 1 to drawer 2",
    ),
    "heat": (
        "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to microwave 1",
        "heat apple 2 with microwave 1", "go to countertop 1", "move apple 2 to countertop 1",
    ),
    "cool": (
        "go to countertop 1", "take bowl 1 from countertop 1", "go to fridge 1", "cool bowl 1 with fridge 1",
        "go to countertop 1", "move bowl 1 to countertop 1",
    ),
    "pick2": (
        "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to sidetable 1", "move apple 2 to sidetable 1",
        "go to countertop 1", "take apple 1 from countertop 1", "go to sidetable 1", "move apple 1 to sidetable 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", GOALS)
def test_family_is_won_only_by_its_last_command(family):
    world = AlfWorld()
    world.reset(as_task(family))
    transitions = [world.step(command) for command in WINS[family]]
    assert all(t.effective for t in transitions)
    assert [t.success for t in transitions] == [False] * (len(transitions) - 1) + [True]
    assert transitions[-1].done and transitions[-1].score == 1.0


def test_success_is_false_again_after_undoing_the_goal():
    world = AlfWorld()
    world.reset(as_task("pick"))
    for command in WINS["pick"]:
        world.step(command)
    assert not world.step("take pen 1 from sidetable 1").success


def test_heated_object_in_second_receptacle_wins_while_carried():
    """The apple starts on the countertop and in the sink: taken from the sink, it is still on the countertop."""
    household = play("heat", "go to sinkbasin 1", "take apple 1 from sinkbasin 1", "go to microwave 1")
    assert not household.won
    household.execute("heat apple 1 with microwave 1")
    assert household.won


def test_world_reports_ineffective_actions_and_requires_a_game():
    world = AlfWorld()
    with pytest.raises(TacitError, match="reset"):
        world.step("look")
    with pytest.raises(TacitError, match="no 'game'"):
        world.reset(Task("alfworld", "x", "pick", "test", 0, ""))
    world.reset(as_task("pick"))
    assert not world.step("dance").effective
    assert world.step("look").effective


def test_two_worlds_share_no_state():
    first, second = AlfWorld(), AlfWorld()
    task = as_task("pick")
    first.reset(task)
    before = second.reset(task)
    first.step("go to drawer 1")
    first.step("open drawer 1")
    assert second.step("look").observation.actions == before.actions
    assert first.reset(task) == before


@given(st.lists(st.integers(0, 10**6), max_size=60))
@settings(max_examples=60, deadline=None)
def test_commands_are_sorted_unique_and_effective_in_any_state(choices):
    household = play("pick2")
    things = {i for i, thing in enumerate(household.game.things) if "pickupable" in thing.traits}
    for choice in choices:
        assert list(household.commands) == sorted(set(household.commands))
        assert household.execute(household.commands[choice % len(household.commands)]) != "Nothing happens."
        assert things == {i for row in household.contents for i in row if i in things} | ({household.held} - {None})


def test_game_data_survives_a_round_trip():
    for family in GOALS:
        game = parse_problem(problem(family), SENTENCES[family])
        assert game.goal.family == family
        assert Game.from_data(game.to_data()) == game


def test_number_names_counts_down_within_a_kind():
    assert number_names(["fork", "mug", "fork"]) == ["fork 2", "mug 1", "fork 1"]


def test_parse_goal_accepts_any_order_and_rejects_unknown_goals():
    goal = "(:goal (exists (?x - object ?y - receptacle) (and (inReceptacle ?x ?y) (isHot ?x) (receptacleType ?y FridgeType) (objectType ?x EggType) (heatable ?x))))"  # noqa: E501
    assert parse_goal(goal) == Goal("heat", "egg", "fridge")
    for wrong in (
        goal.replace("(isHot ?x)", "(isSliced ?x)"),
        goal.replace("(heatable ?x)", "(not (heatable ?x))"),
        goal.replace("exists", "forall"),
        "(:goal (and))",
        "(:goal)",
    ):
        with pytest.raises(TacitError, match="goal"):
            parse_goal(wrong)
    with pytest.raises(TacitError, match="truncated"):
        parse_goal("(:goal (and")


def test_inconsistent_house_is_rejected():
    goal = Goal("pick", "pen", "desk")
    desk, pen = Receptacle("desk 1", "desk", 1), Thing("pen 1", "pen", frozenset({"pickupable"}), (0,), (1,))
    good = Game((desk,), (pen,), frozenset(), 0, goal, "put a pen on desk.")
    assert Household(good).won
    for things in ((pen, pen), (Thing("pen 1", "pen", frozenset({"heavy"})),), (Thing("pen 1", "pen", receptacles=(3,)),)):
        with pytest.raises(TacitError, match="not a household"):
            Game((desk,), things, frozenset(), 0, goal, "")
    with pytest.raises(TacitError, match="malformed"):
        Game.from_data({**good.to_data(), "things": [["pen 1"]]})
