"""Find worlds and methods by name, by dotted path and in a user's file."""

from __future__ import annotations

import textwrap

import pytest

from tacit.core.errors import TacitError
from tacit.methods import get_method
from tacit.methods.grpo import GRPO
from tacit.rollout.workers import WorkerPool
from tacit.worlds import get_environment
from tacit.worlds.countdown import ENVIRONMENT

pytestmark = pytest.mark.usefixtures("trusted_code")
OWN_WORLD = """
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment

class Door:
    def reset(self, task):
        return Observation("a door")
    def step(self, action):
        return Transition(Observation("open"), done=True, success=action == "open")
    def close(self):
        pass

DOOR = Environment("door", "one door", 1, Door, lambda split, count, seed: [], ("train",), ("only",), {})
NOTHING = 3
"""


def write(path, text=OWN_WORLD):
    path.write_text(textwrap.dedent(text))
    return path


def test_world_is_found_by_name_and_dotted_path():
    assert get_environment("countdown") is ENVIRONMENT
    assert get_environment("tacit.worlds.countdown:ENVIRONMENT") is ENVIRONMENT


def test_misspelt_world_name_gets_a_suggestion():
    with pytest.raises(TacitError, match="Did you mean 'countdown'"):
        get_environment("countdwon")


def test_world_is_loaded_once_from_a_user_file(tmp_path):
    name = f"{write(tmp_path / 'my_door.py')}:DOOR"
    world = get_environment(name)
    assert world.name == "door" and world.make().reset(None).text == "a door"
    assert get_environment(name) is world, "the file is imported once"


def test_world_from_a_user_file_runs_in_worker_processes(tmp_path):
    world = get_environment(f"{write(tmp_path / 'my_other_door.py')}:DOOR")
    pool = WorkerPool(world.make, processes=1, timeout_s=60)
    try:
        task = get_environment("countdown").tasks("train", 1, 0)[0]
        assert [o.text for o in pool.reset([task])] == ["a door"]
    finally:
        pool.close()


def test_user_file_cannot_shadow_an_imported_library(tmp_path):
    import json

    with pytest.raises(TacitError, match="another module"):
        get_environment(f"{write(tmp_path / 'json.py')}:DOOR")
    import json as again

    assert again is json and json.dumps([]) == "[]"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{folder}/door_with_fault.py:NOTHING", "is not a valid world: it must be a tacit.core.world.Environment"),
        ("{folder}/door_with_none.py:MISSING", "door_with_none.py has DOOR, not 'MISSING'"),
        ("{folder}/door_with_none.py", r"is a file; name the world in it: .*door_with_none.py:NAME"),
        ("door", r"unknown world 'door'\. Known: .* Your own: package.module:NAME or path/to/file.py:NAME"),
        ("{folder}/absent.py:DOOR", "the world file .* does not exist"),
        ("no_such_package.world:DOOR", "cannot import"),
        (":DOOR", "cannot import"),
    ],
)
def test_invalid_world_name_error_explains_the_problem(tmp_path, name, message):
    write(tmp_path / "door_with_fault.py")
    write(tmp_path / "door_with_none.py")
    with pytest.raises(TacitError, match=message):
        get_environment(name.format(folder=tmp_path))


def test_failed_world_file_can_be_fixed_and_reloaded(tmp_path):
    path = write(tmp_path / "mended_door.py", "import no_such_package\n")
    with pytest.raises(TacitError, match="no_such_package"):
        get_environment(f"{path}:DOOR")
    write(path)
    assert get_environment(f"{path}:DOOR").name == "door"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1 / 0", r"ZeroDivisionError: division by zero \(.*broken_door.py, line 1\)"),
        ("import argparse; argparse.ArgumentParser().exit(2)", r"SystemExit: 2 \(broken_door.py, line 1\)"),
        ("def broken(:", r"invalid syntax \(broken_door.py, line 1\)"),
    ],
)
def test_broken_world_file_error_names_file_and_line(tmp_path, text, message):
    with pytest.raises(TacitError, match=message):
        get_environment(f"{write(tmp_path / 'broken_door.py', text)}:DOOR")


def test_wordings_and_experts_are_found_by_name():
    assert ENVIRONMENT.expert() is ENVIRONMENT.expert("solver")
    with pytest.raises(TacitError, match="Did you mean 'terse'"):
        ENVIRONMENT.wording("ters")
    with pytest.raises(TacitError, match="Did you mean 'solver'"):
        ENVIRONMENT.expert("solvr")


def test_missing_expert_error_suggests_alternatives(tmp_path):
    with pytest.raises(TacitError, match=r"has no expert: give its Environment `experts`, or set sft\.steps = 0"):
        get_environment(f"{write(tmp_path / 'lonely_door.py')}:DOOR").expert()


def test_method_is_found_by_name_and_dotted_path():
    assert get_method("grpo") is GRPO is get_method("tacit.methods.grpo:GRPO")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rlo", "Did you mean 'rloo'"),
        ("tacit.methods.grpo:Nothing", "cannot import the method"),
        ("no_such_package:GRPO", "cannot import the method"),
        (":GRPO", "cannot import the method"),
        ("tacit.core.types:Task", "is not a valid method"),
    ],
)
def test_invalid_method_name_error_explains_the_problem(name, message):
    with pytest.raises(TacitError, match=message):
        get_method(name)
