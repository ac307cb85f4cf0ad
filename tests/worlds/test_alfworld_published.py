"""Loading published games from folders and JSON lines, bad files, and parity with transcripts of the real engine."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from alfworld_problem import GOALS, SENTENCES, lines, problem

from tacit.core.errors import TacitError
from tacit.worlds.alfworld import ENVIRONMENT
from tacit.worlds.alfworld.published import load_games, published_tasks
from tacit.worlds.alfworld.world import AlfWorld

ROOT = Path(__file__).resolve().parents[2]
GRAMMAR = 'grammar :: """{"task": [{"rhs": "Your task is to: %s"}]}""";'


def write_folders(root: Path, families=tuple(GOALS), folder: str = "train") -> list[Path]:
    paths = []
    for family in families:
        path = root / "json_2.1.1" / folder / f"task_{family}" / "trial_1" / "game.tw-pddl"
        path.parent.mkdir(parents=True)
        game = {"pddl_domain": "(define (domain alfred))", "grammar": GRAMMAR % SENTENCES[family], "solvable": True}
        path.write_text(json.dumps({**game, "pddl_problem": problem(family), "walkthrough": ["look"]}))
        paths.append(path)
    return paths


def test_folders_and_json_lines_give_the_same_tasks(tmp_path, monkeypatch):
    write_folders(tmp_path / "folders")
    (tmp_path / "lines").mkdir()
    with lzma.open(tmp_path / "lines" / "train.jsonl.xz", "wt") as file:
        file.write("\n".join(reversed(lines())))
    forms = []
    for root in ("folders", "lines"):
        monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / root))
        forms.append(ENVIRONMENT.tasks("published_train", 6, 3))
    assert forms[0] == forms[1]
    assert {task.family for task in forms[0]} == set(GOALS)
    assert forms[0][0].split == "published_train"
    assert forms[0] != ENVIRONMENT.tasks("published_train", 6, 4)
    assert ENVIRONMENT.tasks("published_train", 2, 3) == forms[0][:2]
    assert load_games(tmp_path / "folders").tasks == load_games(tmp_path / "lines" / "train.jsonl.xz").tasks
    assert [t.id for t in load_games(tmp_path / "folders").tasks] == sorted(t.id for t in forms[0])


def test_load_games_reads_a_single_game_file(tmp_path):
    path = write_folders(tmp_path, ["heat"])[0]
    (task,) = load_games(path).tasks
    assert (task.id, task.family, task.goal) == ("published_train/task_heat/trial_1", "heat", "do the heat task.")
    assert AlfWorld().reset(task).text.endswith("Your task is to: do the heat task.")


def _no_goal(text: str) -> str:
    return json.dumps({**json.loads(text), "pddl_problem": problem(goal="(isSliced ?x)")})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "hello", "not valid JSON"),
        (lambda text: "[1, 2]", "not a household game"),
        (lambda text: '{"a": 1}', "it has no 'grammar'"),
        (lambda text: json.dumps({**json.loads(text), "grammar": ""}), "does not state the task"),
        (lambda text: json.dumps({**json.loads(text), "pddl_problem": problem()[:2000]}), "truncated"),
        (lambda text: json.dumps({**json.loads(text), "pddl_problem": "(define (problem x))"}), "truncated or foreign"),
        (lambda text: json.dumps({**json.loads(text), "pddl_problem": 7}), "not a household game"),
        (_no_goal, "none of the six"),
    ],
)
def test_bad_game_file_is_reported_and_the_rest_load(tmp_path, damage, message, caplog, monkeypatch):
    paths = write_folders(tmp_path)
    bad = paths[2]
    bad.write_text(damage(bad.read_text()))
    with pytest.raises(TacitError, match=message) as error:
        load_games(bad)
    assert str(bad) in str(error.value)
    loaded = load_games(tmp_path)
    assert len(loaded.tasks) == 5 and len(loaded.failures) == 1
    assert "5 games loaded, 1 could not be read" in loaded.report and str(bad) in loaded.report
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert len(ENVIRONMENT.tasks("published_train", 5, 0)) == 5
    with pytest.raises(TacitError, match=r"'published_train' has too few games: 6 were requested.*5 games loaded, 1 could not"):
        ENVIRONMENT.tasks("published_train", 6, 0)
    assert str(bad) in caplog.text


def test_binary_file_error_names_the_file(tmp_path):
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(TacitError, match=r"game\.tw-pddl"):
        load_games(path)


def test_unsolvable_and_sliced_games_are_skipped_and_counted(tmp_path):
    paths = write_folders(tmp_path)
    paths[0].write_text(json.dumps({**json.loads(paths[0].read_text()), "solvable": False}))
    sliced = paths[1].parents[1].with_name("task-AppleSliced-None-Fridge-1")
    paths[1].parents[1].rename(sliced)
    loaded = load_games(tmp_path)
    assert (len(loaded.tasks), loaded.left_out, loaded.failures) == (4, 2, ())
    assert "2 left out" in loaded.report


def test_truncated_and_damaged_json_lines_are_reported(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = lines()
    path.write_text("\n".join([*rows[:3], rows[3][:500], '{"split": "train"}', "", *rows[4:]]))
    loaded = load_games(path)
    assert len(loaded.tasks) == 5 and len(loaded.failures) == 2
    assert f"{path}, line 4" in loaded.report and f"{path}, line 5" in loaded.report

    packed = tmp_path / "packed.jsonl.xz"
    packed.write_bytes(lzma.compress("\n".join(rows).encode())[:-600])
    with pytest.raises(TacitError, match=r"packed\.jsonl\.xz.*truncated"):
        load_games(packed)
    packed.write_bytes(b"not xz at all")
    with pytest.raises(TacitError, match=r"packed\.jsonl\.xz"):
        load_games(packed)


def test_missing_data_errors_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(TacitError, match=r"no such file or directory: .*nowhere"):
        load_games(tmp_path / "nowhere")
    with pytest.raises(TacitError, match="holds no games"):
        load_games(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(TacitError, match="ALFWORLD_DATA"):
        published_tasks("valid_seen", 1, 0)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(TacitError, match="no published games of 'valid_seen'"):
        ENVIRONMENT.tasks("valid_seen", 1, 0)
    with pytest.raises(TacitError, match="Did you mean 'valid_seen'"):
        ENVIRONMENT.tasks("valid_sen", 1, 0)


def run_parity(*arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "alfworld_parity.py"), *map(str, arguments), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def record_of(family: str, games: Path) -> dict:
    """A transcript of our own answers in the recorder's format."""
    world = AlfWorld()
    task = next(task for task in load_games(games).tasks if task.family == family)
    observation = world.reset(task)
    steps = [{"action": None, "feedback": observation.text, "admissible": list(observation.actions), "won": False}]
    for action in ("go to fridge 1", "", "open fridge 1"):
        answer = world.step(action)
        fields = {"feedback": answer.observation.text, "admissible": list(answer.observation.actions)}
        steps.append({"action": action, **fields, "won": answer.success})
    return {"split": "train", "task": f"task_{family}", "trial": "trial_1", "episodes": [{"steps": steps}]}


@pytest.mark.slow
def test_parity_script_counts_differences_and_sets_exit_code(tmp_path):
    games, transcripts = tmp_path / "games.jsonl", tmp_path / "transcripts.jsonl"
    games.write_text("\n".join(lines()))
    records = [record_of("pick", games), record_of("heat", games)]
    transcripts.write_text("\n".join(map(json.dumps, records)))
    done = run_parity(transcripts, games)
    assert done.returncode == 0, done.stderr
    assert "2 games, 8 steps compared, 8 equal" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["steps_equal"] == 8

    records[0]["episodes"][0]["steps"][1]["feedback"] += "!"
    records[1]["episodes"][0]["steps"][2]["admissible"].reverse()
    records[1]["episodes"][0]["steps"][3]["won"] = True
    transcripts.write_text("\n".join(map(json.dumps, records)))
    done = run_parity(transcripts, games)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    assert (summary["steps_compared"], summary["steps_equal"], len(summary["differences"])) == (8, 5, 3)

    transcripts.write_text(json.dumps({**record_of("pick", games), "task": "unknown"}))
    assert run_parity(transcripts, games).returncode == 1
    transcripts.write_text("")
    assert run_parity(transcripts, games).returncode == 1
    assert run_parity(games, games).returncode == 2


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("split", ["valid_seen", "train"])
def test_world_reproduces_every_recorded_step_of_the_real_engine(shared_data, split):
    data = shared_data / "alfworld"
    transcripts, games = data / f"transcripts_{split}.jsonl.xz", data / f"{split}.jsonl.xz"
    if not transcripts.exists() or not games.exists():
        pytest.skip(f"no transcripts of {split} in {data}")
    done = run_parity(transcripts, games)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["steps_compared"] > 4000


@pytest.mark.parametrize(("split", "count"), [("valid_seen", 140), pytest.param("train", 3553, marks=pytest.mark.slow)])
def test_all_published_games_load_and_their_walkthroughs_win(shared_data, split, count):
    path = shared_data / "alfworld" / f"{split}.jsonl.xz"
    if not path.exists():
        pytest.skip(f"no published games at {path}")
    loaded = load_games(path)
    assert len(loaded.tasks) == count and not loaded.failures
    assert len({task.id for task in loaded.tasks}) == count
    assert set(Counter(task.family for task in loaded.tasks)) == set(ENVIRONMENT.families)
    world = AlfWorld()
    for task in loaded.tasks:
        world.reset(task)
        transitions = [world.step(command) for command in task.data["walkthrough"]]
        assert transitions[-1].success and all(t.effective for t in transitions), task.id
