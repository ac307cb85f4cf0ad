"""Mistakes of a first user: each gives one error that names the value and the remedy, before a model is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from guessing import SAME

from tacit.cli.main import main
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.types import Observation, StopReason, Task, Trajectory
from tacit.core.world import Brief
from tacit.methods.grpo import GRPO
from tacit.modules.module import find_module_directories
from tacit.rollout.worlds import describe_overlong
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.setup import WorldSetup

WORLD = """
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Brief, Environment, World


class Echo(World):
    def reset(self, task):
        self.word = task.data["word"]
        return Observation(START)

    def step(self, action):
        return Transition(Observation("done"), done=True, success=action == self.word)


class Knows:
    def __init__(self, task):
        self.word = task.data["word"]

    def act(self, observation):
        return self.word


def tasks(split, count, seed):
    return [Task("echo", f"{split}/{i}", "all", split, seed, "Say it.", {"word": f"w{i}"}) for i in range(count)]


START = "say it"
ECHO = Environment(
    name="echo",
    summary="Say a word.",
    max_steps=2,
    make=Echo,
    tasks=tasks,
    splits=("train", "test"),
    families=("all",),
    wordings={"full": Brief(), "terse": Brief()},
    experts={"knows": Knows},
    example_texts=lambda seed: ["say it w0 w1"] * 9,
)
"""


def refuse(capsys, *words: object) -> str:
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def write_world(tmp_path: Path, name: str, old: str = "", new: str = "") -> str:
    assert old in WORLD
    (tmp_path / f"{name}.py").write_text(WORLD.replace(old, new) if old else WORLD)
    return f"{tmp_path / name}.py:ECHO"


def test_edited_world_is_played_again(tmp_path, capsys):
    world = write_world(tmp_path, "edited_echo")
    command = ["eval", "expert", "--world", world, "--tasks", "2", "--out", str(tmp_path / "out")]
    assert main(command) == 0 and main(command) == 0
    assert "already played: 2 episodes" in capsys.readouterr().out
    with (tmp_path / "edited_echo.py").open("a") as file:
        file.write("# other rules\n")
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "already played" not in printed and "edited_echo.py" in printed and "they are played again" in printed


def test_world_that_cannot_start_is_refused_before_the_model_loads(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tacit.config.resources.RunResources.open", lambda self: pytest.fail("loaded the model"))
    world = write_world(tmp_path, "numbered_echo", "Observation(START)", "Observation(7)")
    error = refuse(capsys, "train", "--world", world, "--model", "tiny", "--out", tmp_path / "run", "--style", "bare")
    assert "breaks in the first 4 tasks of echo/test/128: " in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("return Transition(Observation", "return Transition(self.nothing", "AttributeError: 'Echo' object has no attribute"),
        ("success=action == self.word", 'success="yes"', "which must be True or False"),
        ("return self.word", "return self.words", "AttributeError: 'Knows' object has no attribute 'words'"),
        ("return self.word", "return None", "act of the agent or expert must return the action as text, but returned nothing"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--sft.steps", "4")])
def test_world_that_breaks_is_refused_before_the_model_loads(old, new, reason, flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tacit.config.resources.RunResources.open", lambda self: pytest.fail("loaded the model"))
    world = write_world(tmp_path, tmp_path.name, old, new)
    error = refuse(capsys, "train", "--world", world, "--model", "tiny", "--out", tmp_path / "run", "--style", "bare", *flags)
    assert reason in error
    assert "act of" in reason or "world 'echo' or its expert breaks in the first 4 tasks of echo/test/128: " in error
    assert not (tmp_path / "run").exists()


def test_tasks_shared_by_panel_and_training_are_noted(tmp_path):
    settings = TrainSettings(tasks=8, evaluation=EvaluationSettings(tasks=4, split="test"))
    method = GRPO().with_prompt(wording="terse", style="bare").build(SAME)

    def notes(data) -> tuple[str, ...]:
        tasks = lambda split, count, seed: [  # noqa: E731
            Task("same", f"{split}/{i}", SAME.families[0], split, seed, "goal", data(split, i)) for i in range(count)
        ]
        return WorldSetup.of(replace(SAME, tasks=tasks), method, settings).check_start().tasks.notes

    (note,) = notes(lambda split, i: {"n": i})
    assert note.startswith("note: 4 of 4 tasks of same/test/4 have the data of a training task")
    assert notes(lambda split, i: {"n": f"{split}{i}"}) == ()
    assert notes(lambda split, i: {}) == (), "tasks without data may differ in their seed"


def test_family_that_the_world_does_not_have_is_refused(tmp_path, capsys):
    world = write_world(tmp_path, "family_echo", 'families=("all",)', 'families=("one",)')
    error = refuse(capsys, "train", "--world", world, "--model", "tiny", "--out", tmp_path / "run", "--style", "bare")
    assert "unknown family 'all' of task 'test/0' of world 'echo'. Known: one." in error


@pytest.mark.parametrize(
    "field, value, reason",
    [
        ("max_steps", 0, "max_steps of world 'same' is 0; an episode needs at least 1"),
        ("max_steps", "8", "max_steps of world 'same' is '8'; write it as in max_steps=30."),
        ("families", "all", r"families of world 'same' is 'all'; write it as in families=\("),
        ("splits", "train", r"splits of world 'same' is 'train'; write it as in splits=\("),
        ("experts", Path, r"write it as in experts=\{"),
        ("experts", {"one": Path()}, "expert 'one' of world 'same' is a PosixPath, not a function of a task; give the class"),
        ("wordings", {"full": Brief}, r"wording 'full' of world 'same' is a class; write Brief\(\)"),
    ],
)
def test_wrong_field_of_an_environment_is_refused(field, value, reason):
    with pytest.raises(TacitError, match=reason):
        replace(SAME, **{field: value})


def test_task_data_that_is_not_json_is_refused(tmp_path, capsys):
    world = write_world(tmp_path, "set_echo", '{"word": f"w{i}"}', '{"word": {i}}')
    error = refuse(capsys, "train", "--world", world, "--model", "tiny", "--out", tmp_path / "run", "--style", "bare")
    assert "the data of task 'test/0' of world 'echo' is stored as JSON, but TypeError: Object of type set" in error


def test_overlong_prompts_are_described():
    task = SAME.tasks("test", 1, 0)[0]
    fits = Trajectory(task, (), False, 0.0, StopReason.STEP_LIMIT, Observation("end"))
    overlong = Trajectory(
        task, (), False, 0.0, StopReason.PROMPT_TOO_LONG, Observation("end"), detail="900 prompt + 8 new tokens > 512"
    )
    assert describe_overlong([fits]) == ""
    assert describe_overlong([fits, overlong]).startswith(
        "1 of 2 episodes ended because the prompt does not fit the model's context (900 prompt + 8 new tokens > 512): use"
    )


def test_negative_number_with_an_exponent_is_a_value(capsys):
    assert "lr = -0.0001 must not be negative" in refuse(capsys, "train", "--world", "countdown", "--lr", "-1e-4")


def test_settings_by_their_names_in_other_libraries_are_suggested():
    with pytest.raises(TacitError, match=r"unknown key `learning_rate` in \[schedule\]; did you mean `lr`\?"):
        Recipe.from_json({"world": "countdown", "schedule": {"learning_rate": 1e-4}})
    with pytest.raises(TacitError, match=r"unknown key `max_new_tokens`; did you mean `max_tokens`"):
        Recipe.from_json({"world": "countdown", "max_new_tokens": 9})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "--model", "tiny", "--world", "countdown"], "model 'tiny' is built from a world's texts"),
        (["train", "--world", "countdown", "--model", "exprt"], "Did you mean 'expert'?"),
        (["plan", "--model", "smollm2", "--world", "countdown"], "`tacit prepare smollm2 DIR`"),
    ],
)
def test_wrong_model_names_get_a_remedy(capsys, words, says):
    assert says in refuse(capsys, *words)


def test_directory_where_a_settings_file_or_module_is_expected(tmp_path, capsys):
    assert "is a directory; give a settings file (TOML)" in refuse(capsys, "compare", tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(TacitError, match="is a run; export it first: `tacit modules export"):
        find_module_directories(tmp_path)


def test_run_settings_given_to_compare(tmp_path, capsys):
    (tmp_path / "one.toml").write_text('world = "countdown"\n')
    assert "a file for one run is used as `tacit train --config`" in refuse(capsys, "compare", tmp_path / "one.toml")
