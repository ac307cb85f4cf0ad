"""ScienceWorld without a JVM: tasks, splits, text parsing, tracker, skills and hindsight."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
from scienceworld_traces import task, traces, transition

from tacit.core.errors import TacitError
from tacit.core.types import Completion, Observation, Prompt, Step, StopReason, Trajectory
from tacit.evaluation.panels import Panel
from tacit.methods.constant_context import ConstantContext
from tacit.worlds import get_environment
from tacit.worlds.scienceworld import world
from tacit.worlds.scienceworld.skills import ADVICE, BOUND, ERRORS, PROCEDURES, SCORE_SHARE, SKILLS, read_goal, skill
from tacit.worlds.scienceworld.world import (
    FAMILIES,
    OUT_OF_STEPS,
    SIZES,
    TASKS,
    WRONG_FOCUS,
    Event,
    brief,
    goals,
    read_event,
    read_inventory,
    tasks,
)

WORLD = get_environment("scienceworld")
NO_FILE = ("train", "dev", "test", "eto_test")


def variations(split):
    return {(t.data["task"], t.data["variation"]) for t in tasks(split, SIZES[split], 0)}


def test_split_sizes_match_the_publication():
    assert [SIZES[split] for split in WORLD.splits] == [3592, 1796, 1819, 211, 1483, 194]
    assert len(TASKS) == 30 and len(FAMILIES) == 11 and set(FAMILIES) == set(PROCEDURES)
    assert {name: len(sentences) for name, sentences in goals().items()} == {
        name: sum(kind[1:4]) for name, kind in TASKS.items()
    }


def test_goals_keep_double_spaces_of_the_simulator():
    spaced = {name for name, sentences in goals().items() if any("  " in sentence for sentence in sentences)}
    assert spaced == {
        "grow-fruit",
        "chemistry-mix-paint-tertiary-color",
        *(name for name in TASKS if name.startswith("lifespan")),
    }
    assert (
        WORLD.wording("full")
        .task(task("lifespan-longest-lived", 0))
        .endswith("location.  Focus on the animal with the longest life span.")
    )
    assert "  " not in WORLD.wording("terse").task(task("lifespan-longest-lived", 0))


def test_splits_are_disjoint_and_eto_test_is_within_test():
    train, dev, test, eto = map(variations, NO_FILE)
    assert not train & dev and not train & test and not dev & test and eto < test


@pytest.mark.parametrize("split", NO_FILE)
def test_panels_match_pinned_hashes(split):
    panel = Panel.of(WORLD, split, SIZES[split])
    assert panel.hash == WORLD.panels[split][SIZES[split]] and panel.difference() == ""


def test_eto_splits_match_the_published_lists(shared_data, monkeypatch):
    folder = shared_data / "scienceworld"
    if not folder.is_dir():
        pytest.skip(f"{folder} has no lists of ETO's")
    monkeypatch.setenv("SCIENCEWORLD_ETO", str(folder))
    own = {
        (name, at)
        for name, at in json.loads((folder / "eto_test_indices.json").read_text())
        for name in [name.split("-", 2)[2].replace("(", "").replace(")", "")]
    }
    assert variations("eto_test") == own
    assert not variations("eto_train") & variations("test") and len(variations("eto_train") & variations("eto_dev")) == 54
    for split in ("eto_train", "eto_dev"):
        assert Panel.of(WORLD, split, SIZES[split]).hash == WORLD.panels[split][SIZES[split]]
    limits = json.loads((folder / "eto_max_steps.json").read_text())
    ours = {name: kind.limit for name, kind in TASKS.items() if kind.limit}
    assert sorted(ours.values()) == sorted(limits.values()) and len(ours) == len(limits)
    assert all(t.data["limit"] == ours[t.data["task"]] for t in tasks("eto_dev", 194, 0))
    assert all(t.data["max_steps"] == ours[t.data["task"]] and "limit" not in t.data for t in tasks("eto_train", 1483, 0))


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (None, "set SCIENCEWORLD_ETO to the directory"),
        ("not JSON", "is not a list"),
        ('[["task-1-boil", 30]]', "names variation 30 of 'boil'"),
        ('[["task-1-bake", 0]]', "'bake', which ScienceWorld does not have"),
    ],
)
def test_missing_or_invalid_eto_lists_are_rejected(lists, says, tmp_path, monkeypatch):
    monkeypatch.delenv("SCIENCEWORLD_ETO", raising=False)
    if lists is not None:
        (tmp_path / "dev_indices.json").write_text(lists)
        monkeypatch.setenv("SCIENCEWORLD_ETO", str(tmp_path))
    with pytest.raises(TacitError, match=says):
        tasks("eto_dev", 2, 0)


def test_family_filter_selects_tasks_in_order():
    among = [t for t in tasks("eto_test", 211, 5) if t.family == "power"]
    assert list(WORLD.tasks_of("eto_test", 50, 5, ("power",))) == among and len(among) == 10


def test_tasks_and_texts_need_no_package():
    code = (
        "import sys; sys.modules['scienceworld'] = sys.modules['py4j'] = None\n"
        "from tacit.worlds import get_environment\n"
        "world = get_environment('scienceworld'); world.tasks('test', 3, 0); world.example_texts(0); print(world.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "scienceworld\n", done.stderr


def test_missing_package_or_java_error_says_how_to_install(monkeypatch, tmp_path):
    for name in ("py4j", "py4j.java_gateway"):
        monkeypatch.setitem(sys.modules, name, None)
    assert WORLD.missing[-1] == "py4j" and "py4j: `pip install 'tacit-agents[scienceworld]'`" in WORLD.remedy
    with pytest.raises(TacitError, match=r"needs the packages scienceworld and py4j .*\[scienceworld\]"):
        world.start_simulator()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert re.search(r"Java, and JAVA_HOME is .* which has no bin/java: `apt install openjdk-17", WORLD.remedy)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TacitError, match=r"not ready here: it needs .*Java, and there is no `java` on the path: `apt"):
        WORLD.check_ready()


def test_missing_jar_or_failing_java_is_reported(monkeypatch, tmp_path):
    pytest.importorskip("py4j", reason="needs the extra scienceworld")
    (tmp_path / "scienceworld").mkdir()
    (tmp_path / "scienceworld" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "scienceworld", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert re.fullmatch(
        r"needs the simulator .*scienceworld.jar, which is part of its package: reinstall that, `pip .*", WORLD.remedy
    )
    with pytest.raises(TacitError, match=r"ScienceWorld needs the simulator .*reinstall that, `pip"):
        world.start_simulator()
    jar = tmp_path / "scienceworld" / "scienceworld.jar"
    jar.touch()
    assert WORLD.remedy == ""
    with pytest.raises(TacitError, match=r"scienceworld.jar is not the simulator of scienceworld 1.2.3: .*EnvObject.class"):
        world.start_simulator()
    monkeypatch.setattr(world, "write_patched_class", lambda jar, directory: None)
    with pytest.raises(TacitError, match=r"could not start ScienceWorld's simulator: no such option. Try another Java: `apt"):
        world.start_simulator()


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("You move to the kitchen.", Event("went", "kitchen")),
        ("You move through the door to the art studio.", Event("went", "art studio")),
        ("You move the metal pot to the inventory.", Event("took", "metal pot")),
        ("(disconnecting sodium chloride)You move the sodium chloride to the green box.",
         Event("moved", "sodium chloride", "green box")),
        ("anode on battery is now connected to terminal 1 on green wire", Event("connected", "battery", "green wire")),
        ("the thermometer measures a temperature of -5 degrees celsius", Event("measured", "-5")),
        ("Sugar and water mix to produce sugar water.", Event("mixed", "Sugar and water", "sugar water")),
        ("The door is already open.", Event("refused")),
        ("The stove appears broken, and can't be activated or deactivated.", Event("refused")),
        ("No known action matches that input.", Event("refused")),
        ("This outside location is called the outside. Here you see: \n\tthe agent", Event("room", "outside")),
        ("a substance called liquid lead", Event()),
    ],
)  # fmt: skip
def test_read_event_parses_observations(text, event):
    assert read_event(text) == event


def test_read_inventory_lists_held_objects():
    assert read_inventory("In your inventory, you see:\n\ta metal pot (containing nothing)\n\tan orange\n") == (
        "metal pot",
        "orange",
    )
    assert read_inventory("You move to the kitchen.") is None


def test_read_goal_finds_target_and_answer_boxes():
    for name, sentences in goals().items():
        for sentence in sentences:
            goal = read_goal(sentence)
            assert goal.target, (name, sentence)
            assert all(box in sentence for box in goal.answers) and ("box" in sentence) == bool(goal.answers)


def test_gold_path_rewards_add_up():
    """Over a solved task, Δscore / 33 sums to 100 / 33 minus the share of the first observation. Milestones are paid once."""
    for task_, turns in traces():
        tracker, sums = WORLD.tracker, {}
        state = tracker.start(task_, Observation(turns[0][1]))
        for (_, _, before), (action, text, score) in pairwise(turns):
            after = tracker.update(state, action, transition(text, before, score))
            for name, worth in tracker.signals(state, after).items():
                sums[name] = sums.get(name, 0.0) + worth
            state = after
            for tracked in WORLD.trackers.values():
                assert len(tracked.render(state)) <= BOUND
        assert sums["env"] == sums["env.score"] == pytest.approx(SCORE_SHARE * (1 - turns[0][2])), task_.id
        assert len(set(state.reached)) == len(state.reached) >= 2, (task_.id, state.reached)
        required = {m.name for m in PROCEDURES[task_.family] if not m.optional}
        assert required <= set(state.reached), (task_.id, state.reached)
        assert set(sums) <= {"progress", "error", "env", *tracker.components}
        assert sums["error"] < 0.02 * len(turns) + 0.5, (task_.id, sums)


def test_state_block_in_the_middle_of_an_episode():
    (task_, turns) = next(pair for pair in traces() if pair[0].data["task"] == "find-animal")
    state = WORLD.tracker.start(task_, Observation(turns[0][1]))
    for action, text, score in turns[1:8]:
        state = WORLD.tracker.update(state, action, transition(text, 0.0, score))
    assert WORLD.tracker.render(state) == (
        "phase: reach_answer_room\ntarget: animal\nselected: blue jay egg\ninventory: blue jay\nroom: outside\n"
        "visited: hallway, kitchen, outside\nanswer: red box\nanswer room: kitchen\nmeasured: none\n"
        "done: find, take"
    )
    assert WORLD.forms["paper"].render(state) == (
        "phase: reach_answer_room\nselected_entity: blue jay egg\ninventory: blue jay\nanswer_room: kitchen\n"
        "completed_subgoals: find, take"
    )


def errors_of(name, turns):
    state, met = WORLD.tracker.start(task(name, 0), Observation("This room is called the hallway. In it, you see: ")), []
    for action, text, *rest in turns:
        after = WORLD.tracker.update(state, action, transition(text, 0.0, 0.0, *rest))
        met.append(after.errors)
        state = after
    return met


@pytest.mark.parametrize(
    ("name", "turns", "errors"),
    [
        ("boil", [("fly", "No known action matches that input.")], ("unreadable",)),
        ("boil", [("open door to kitchen", "The door is already open.")], ("no_effect",)),
        ("boil", [("look around", "This room is called the hallway.")] * 2, ("repeated",)),
        ("boil", [(f"go to {r}", f"You move to the {r}.") for r in ("a", "b", "a", "b")], ("oscillated",)),
        ("boil", [("eat apple", "You eat the apple.")], ("wrong_skill",)),
        ("power-component", [("connect air to air", "Something can't be connected to itself.")], ("bad_operation",)),
        ("use-thermometer", [("move unknown substance B to red box", "You move the unknown substance B to the red box.")],
         ("premature",)),
        ("boil", [("focus on air", "You focus on the air.", WRONG_FOCUS)], ("wrong_focus",)),
        ("boil", [("wait1", "You decide to wait for 1 iterations.")] * 13, ("waited_long",)),
    ],
)  # fmt: skip
def test_turns_cause_the_expected_error(name, turns, errors):
    assert errors_of(name, turns)[-1] == errors


def test_nine_families_of_the_paper_have_modules_and_table_6_rewards():
    nine = ["find_X", "lifespan", "conductivity", "measurement", "growth", "state_change", "power", "chemistry", "life_stages"]
    assert all(WORLD.skill_families[family] == (family,) and WORLD.handbook[family] for family in nine)
    assert {kind.family for kind in TASKS.values() if kind.limit} == set(nine), "the tasks that ETO plays"
    assert all(0.08 <= milestone.worth <= 2.0 for procedure in PROCEDURES.values() for milestone in procedure)
    assert all(0.03 <= worth <= 0.25 for worth in ERRORS.values()) and pytest.approx(100 / 33) == SCORE_SHARE


def test_every_error_has_a_test_case():
    caused = {error for mark in test_turns_cause_the_expected_error.pytestmark for case in mark.args[1] for error in case[2]}
    assert caused == set(ERRORS)


def test_lost_score_reduces_the_environment_reward():
    tracker = WORLD.tracker
    before = tracker.start(task("boil", 0), Observation("This room is called the hallway."))
    half = tracker.update(before, "go to kitchen", transition("You move to the kitchen.", 0.0, 0.5))
    lost = tracker.update(half, "focus on air", transition("You focus on the air.", 0.5, -1.0, WRONG_FOCUS))
    assert tracker.signals(before, half)["env.score"] == pytest.approx(50 / 33)
    assert tracker.signals(half, lost)["env.score"] == pytest.approx(-150 / 33)
    assert tracker.signals(half, lost)["error"] == tracker.signals(half, lost)["error.wrong_focus"] == 0.25


def test_ablations_keep_the_environment_reward():
    """Figure 3 ablates progress or errors; Δscore / 33 belongs to neither."""
    tracker, term = WORLD.tracker, ConstantContext().signals(WORLD)
    before = tracker.start(task("boil", 0), Observation("This room is called the hallway."))
    half = tracker.update(before, "focus on water", transition("You focus on the water.", 0.0, 0.5))
    lost = tracker.update(half, "focus on air", transition("You focus on the air.", 0.5, -1.0, WRONG_FOCUS))
    turns = [SimpleNamespace(signals=tracker.signals(*pair)) for pair in ((before, half), (half, lost))]
    assert [term.reward(turn) for turn in turns] == pytest.approx([50 / 33 + 0.5 - 0.01, -150 / 33 - 0.25 - 0.01])
    for without, expected in (
        (("progress",), [50 / 33 - 0.01, -150 / 33 - 0.26]),
        (("error",), [50 / 33 + 0.49, -150 / 33 - 0.01]),
        (("progress", "error", "step_cost"), [50 / 33, -150 / 33]),
        (("score",), [0.49, -0.26]),
        (("env", "progress"), [-0.01, -0.26]),
    ):
        term = ConstantContext(without=without).signals(WORLD)
        assert [term.reward(turn) for turn in turns] == pytest.approx(expected), without
    with pytest.raises(TacitError, match="unknown reward component 'lost_score' of world 'scienceworld'"):
        ConstantContext(without=("lost_score",)).signals(WORLD)


TAKEN, ICE, WATER = "You move the {} to the inventory.", "a substance called ice", "a substance called water"
MEASURED = "the thermometer measures a temperature of 9 degrees celsius"
ON_WATER = ("focus on water", "You focus on the water.")
ON_ICE = ("focus on ice", "You focus on the ice.")


@pytest.mark.parametrize(
    ("name", "variation", "turns", "reached"),
    [
        ("use-thermometer", 405, [("move thermometer to yellow box", "You move the thermometer to the yellow box.")], ()),
        ("use-thermometer", 405, [("use thermometer on air", MEASURED)], ()),
        ("use-thermometer", 405, [
            ("focus on thermometer", "You focus on the thermometer."),
            ("use thermometer on unknown substance b", MEASURED),
            ("move thermometer to yellow box", "You move the thermometer to the yellow box.")],
         ("focus_thermometer", "measure")),
        ("boil", 0, [ON_ICE, ("examine ice", ICE)], ("find",)),
        ("freeze", 0, [ON_WATER, ("examine ice", ICE)], ("find", "see_change")),
        ("melt", 0, [ON_WATER, ("examine ice", ICE)], ("find",)),
        ("melt", 0, [ON_ICE, ("examine water", WATER)], ("find", "see_change")),
        ("melt", 0, [ON_ICE, ("examine metal pot", "a metal pot (containing nothing)")], ("find",)),
        ("boil", 0, [("focus on water in glass cup", "You focus on the water."),
                     ("move metal pot to stove", "You move the metal pot to the stove."),
                     ("activate stove", "The stove is now activated.")], ("find",)),
        ("boil", 0, [("focus on water in glass cup", "You focus on the water."),
                     ("move glass cup to stove", "You move the glass cup to the stove."),
                     ("activate oven", "The oven is now activated."), ("activate stove", "The stove is now activated.")],
         ("find", "place", "start")),
        ("test-conductivity", 675, [("wait1", "You decide to wait for 1 iterations.")], ()),
        ("test-conductivity", 675, [("move battery to red box", "You move the battery to the red box.")], ()),
        ("find-animal", 0, [("move axe to red box", "You move the axe to the red box.")], ()),
        ("find-animal", 0, [("focus on dove", "You focus on the dove egg."), ("pick up axe", TAKEN.format("axe")),
                            ("move axe to red box", "You move the axe to the red box.")], ("find",)),
        ("find-animal", 0, [("focus on frog egg", "You focus on the frog egg."), ("pick up tadpole", TAKEN.format("tadpole")),
                            ("move tadpole to red box", "You move the tadpole to the red box.")], ("find", "take", "answer")),
        ("power-component", 15, [("activate sink", "The sink is now activated.")], ()),
        ("chemistry-mix-paint-secondary-color", 27, [
            ("mix cup", "Red and yellow paint mix to produce orange paint."),
            ("move soap to cup", "You move the soap to the cup.")], ()),
        ("grow-plant", 0, [("pour jug into flower pot 1", "You pour the contents of the jug into the flower pot 1."),
                           ("look around", "\ta flower pot 5 (containing a apple tree in the adult stage, soil)")], ()),
        ("inclined-plane-determine-angle", 0, [("focus on plane", "You focus on the inclined plane B.")], ()),
    ],
)  # fmt: skip
def test_milestones_check_the_object_and_the_change(name, variation, turns, reached):
    state = WORLD.tracker.start(task(name, variation), Observation("This room is called the hallway. In it, you see: "))
    for action, text in turns:
        state = WORLD.tracker.update(state, action, transition(text, 0.0, 0.0))
    assert state.reached == reached


@pytest.mark.parametrize(
    ("name", "room", "reached"),
    [
        ("grow-plant", "greenhouse", ("reach_pots",)),
        ("identify-life-stages-1", "outside", ("reach_answer_room",)),
        ("lifespan-longest-lived", "outside", ("reach_answer_room",)),
        ("grow-plant", "hallway", ()),
    ],
)
def test_starting_in_a_milestone_room_is_not_rewarded(name, room, reached):
    """Regression: a first look, or in two families any first action, once earned 0.2 or 0.3."""
    looked = f"This {'outside location' if room == 'outside' else 'room'} is called the {room}. In it, you see: "
    state = WORLD.tracker.start(task(name, 0), Observation(looked))
    assert state.reached == reached and state.phase not in reached
    for action, text in (("look around", looked), ("fly", "No known action matches that input.")):
        after = WORLD.tracker.update(state, action, transition(text, 0.0, 0.0))
        assert WORLD.tracker.signals(state, after)["progress"] == 0


def test_number_resolves_an_ambiguous_request():
    request = "Ambiguous request: Please enter the number for the action you intended:\n0:\tuse thermometer on water"
    state = WORLD.tracker.start(task("boil", 0), Observation("This room is called the hallway."))
    for action, text in (ON_WATER, ("use thermometer on substance", request),
                         ("0", MEASURED)):  # fmt: skip
        state = WORLD.tracker.update(state, action, transition(text, 0.0, 0.0))
    assert state.reached == ("find", "measure")


def test_brief_shortens_room_descriptions():
    room = (
        "This room is called the kitchen. In it, you see: \n\tthe agent\n\ta substance called air\n\ta chair. On the chair is: "
        "nothing.\n\ta cupboard. The cupboard door is open. In the cupboard is: a tin cup (containing nothing), a drawer.\n\t"
        "a stove, which is turned off. On the stove is: nothing.\nYou also see:\n\tA door to the bathroom (that is closed)\n\t"
        "A door to the hallway (that is open)\n"
    )
    assert brief(room) == "kitchen: chair; cupboard open: a tin cup, a drawer; stove off | bathroom?; hallway"
    assert brief("the thermometer measures a temperature of 98 degrees celsius") == "98 C"


def test_every_command_has_a_skill():
    actions = {action for _, turns in traces() for action, *_ in turns[1:]}
    assert {skill(action) for action in actions} == set(SKILLS)
    assert [skill(a) for a in ("open door to kitchen", "open cupboard", "0", "", "FOCUS ON air")] == [
        "MOVE", "ACCESS", "OBSERVE", "OBSERVE", "FOCUS",
    ]  # fmt: skip


def looked_back(turns, task_, success, detail=""):
    """A trajectory made of recorded turns."""
    steps = tuple(
        Step(Observation(before[1]), Prompt("", ""), None, Completion(None, None, "", "stop"), now[0], True)  # type: ignore[arg-type]
        for before, now in pairwise(turns)
    )
    stop = StopReason.SUCCESS if success else StopReason.FAILURE
    return Trajectory(task_, steps, success, float(success), stop, Observation(turns[-1][1]), detail=detail)


def test_hindsight_of_whole_and_half_gold_paths():
    """A success yields the commands that reached milestones; its first half yields the milestones still missing."""
    for task_, turns in traces():
        whole = WORLD.hindsight(looked_back(turns, task_, True))
        actions = [action for action, *_ in turns[1:]]
        assert whole.steps and all(actions[t] == skill for t, skill in whole.steps.items()), task_.id
        assert set(whole.episode.split("; ")) <= set(actions)
        half = WORLD.hindsight(looked_back(turns[: len(turns) // 2 + 1], task_, False, OUT_OF_STEPS))
        assert half.episode.startswith("still to do: ") and "{" not in half.episode and "\n" not in half.episode
    (task_, turns) = next(pair for pair in traces() if pair[0].data["task"] == "find-animal")
    assert WORLD.hindsight(looked_back(turns[:8], task_, False, OUT_OF_STEPS)).episode == (
        "still to do: give the answer with red box"
    )
    lost = looked_back([*turns[:3], ("focus on air", "You focus on the air.", 0.0)], task_, False, WRONG_FOCUS)
    assert WORLD.hindsight(lost).episode.startswith("do not focus on air")


def test_every_milestone_has_advice():
    assert {m.name for procedure in PROCEDURES.values() for m in procedure} | {"finish"} == set(ADVICE)


def test_hindsight_of_refused_command_states_the_phase_goal():
    turns = [("", "This room is called the hallway."), ("fly", "No known action matches that input.")]
    assert WORLD.hindsight(looked_back(turns, task("boil", 0), False, OUT_OF_STEPS)).steps == {
        0: f"look for {read_goal(task('boil', 0).goal).target} and focus on it"
    }


def failed(actions, stop, detail="", score=0.0):
    steps = tuple(
        Step(Observation(""), Prompt("", ""), None, Completion(None, None, "", "stop"), a, True)  # type: ignore[arg-type]
        for a in actions
    )
    return Trajectory(task("boil", 0), steps, False, score, stop, Observation(""), detail=detail)


@pytest.mark.parametrize(
    ("episode", "label"),
    [
        (failed(["focus on air"], StopReason.FAILURE, WRONG_FOCUS), "wrong_focus"),
        (failed(["wait1"], StopReason.FAILURE, OUT_OF_STEPS), "never_focused"),
        (failed(["focus on water"], StopReason.FAILURE, OUT_OF_STEPS, 0.4), "unfinished"),
        (failed(["focus on water"], StopReason.STEP_LIMIT), "timeout"),
        (failed([], StopReason.WORLD_ERROR, "the simulator died"), "world_error"),
    ],
)
def test_failure_labels(episode, label):
    assert WORLD.failure(episode) == label
