"""Every world's expert plays from the command line; more properties of the worlds that need no extra package."""

from __future__ import annotations

import json

import pytest
from every_world import fingerprint, fingerprint_elsewhere

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.worlds import WORLDS as ALL
from tacit.worlds import get_environment

WORLDS = ("countdown", "cooking", "textcraft", "sokoban", "searchqa", "errands")
FIRST_TEST_TASK = {
    "countdown": "countdown/test/61-98-88=71",
    "cooking": "cooking/test/hard-4633f379928a",
}
"""id of the first task of `test` with seed 3"""


SLOW_TO_START = {"scienceworld", "code"}
"""they start a JVM or a sandbox"""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_TO_START)) for name in ALL])
def test_eval_expert_command_wins_in_every_world(name, capsys):
    if remedy := get_environment(name).remedy:
        pytest.skip(f"{name} {remedy}")
    assert main(["eval", "expert", "--world", name, "--tasks", "1", "--json"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["success"] == 1.0


@pytest.mark.parametrize("name", WORLDS)
def test_example_texts_depend_only_on_the_seed(name):
    texts = get_environment(name).example_texts
    assert texts(0) == texts(0) != texts(1)
    assert all(texts(0))


@pytest.mark.parametrize("name", WORLDS)
def test_unknown_splits_and_negative_counts_are_rejected(name):
    environment = get_environment(name)
    with pytest.raises(TacitError, match=rf"split 'tets' of world '{name}'\. Did you mean 'test'"):
        environment.tasks("tets", 1, 0)
    with pytest.raises(TacitError, match="-1 tasks"):
        environment.tasks("test", -1, 0)


@pytest.mark.parametrize("name", WORLDS)
def test_larger_task_count_extends_the_same_list(name):
    tasks = get_environment(name).tasks
    assert list(tasks("test", 80, 3))[:50] == list(tasks("test", 50, 3)) != list(tasks("test", 50, 4))
    if name in FIRST_TEST_TASK:
        assert tasks("test", 1, 3)[0].id == FIRST_TEST_TASK[name]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["countdown", "cooking", "sokoban"])
def test_episodes_are_identical_across_processes(name):
    assert {fingerprint_elsewhere(name, "test", hash_seed) for hash_seed in (1, 4711)} == {fingerprint(name, "test")}
