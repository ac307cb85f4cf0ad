"""Custom panels and published panel hashes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tacit.core.errors import TacitError
from tacit.evaluation.panels import Panel, choose_panel, hash_tasks, read_panel
from tacit.worlds import WORLDS, get_environment

WORLD = get_environment("countdown")
PANEL = Panel.of(WORLD, "test", 16)
ONE = {"id": "mine/1", "goal": "Use 2, 3, 4 to make 24.", "data": {"numbers": [2, 3, 4], "target": 24}}
GENERATED = [
    (world.name, split) for world in map(get_environment, WORLDS) for split in world.panels if split not in world.published
]


@pytest.mark.parametrize(("name", "split"), GENERATED)
def test_generated_tasks_match_published_hashes(name, split):
    hashes = get_environment(name).panels[split]
    sizes = [size for size in hashes if size <= 128]
    tasks = Panel.of(get_environment(name), split, max(sizes)).tasks
    assert {size: hash_tasks(tasks[:size]) for size in sizes} == {size: hashes[size] for size in sizes}


@pytest.mark.slow
def test_published_games_match_their_hash(shared_data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(shared_data / "alfworld"))
    world = get_environment("alfworld")
    panel = Panel.of(world, "valid_seen", 140)
    assert panel.hash == world.panels["valid_seen"][140] and panel.difference() == ""


@pytest.mark.parametrize(
    "name", ["countdown", "alfworld", "cooking", "textcraft", "sokoban", "searchqa", "minihack", "errands"]
)
def test_every_split_has_a_published_hash(name):
    world = get_environment(name)
    theirs = ("valid_unseen",) if name != "searchqa" else ("published_train", "published_test")
    missing = [
        s for s in world.splits if s not in world.panels and s not in theirs and not s.startswith(("boxoban_", "adapt_"))
    ]
    assert not missing, f"{name}: add the hashes of {missing} to its panels.py"


def test_different_tasks_under_a_published_name_are_reported():
    changed = (replace(PANEL.tasks[0], goal="Use 1, 1 to make 2."), *PANEL.tasks[1:])
    message = replace(PANEL, tasks=changed).difference()
    assert hash_tasks(changed) in message and WORLD.panels["test"][16] in message and "countdown/test/16" in message
    assert PANEL.difference() == ""


def test_panel_file_is_checked_against_its_published_name(tmp_path):
    changed = replace(PANEL, tasks=(*PANEL.tasks[1:], PANEL.tasks[0]))
    file = write(tmp_path / "p.json", json.dumps(changed.to_json()))
    assert "countdown/test/16" in choose_panel(WORLD, "", 0, file=str(file)).difference()
    own = write(tmp_path / "q.json", json.dumps({**changed.to_json(), "version": "of my own"}))
    assert choose_panel(WORLD, "", 0, file=str(own)).difference() == ""


def test_custom_world_publishes_panels():
    world = replace(WORLD, name="mine", panels={"test": {4: "0123456789abcdef"}}, panel_version="3")
    panel = Panel.of(world, "test", 6)
    assert panel.version == "3" and "published panel mine/test/4 (version 3)" in panel.difference()


def test_larger_panel_is_checked_by_its_prefix():
    larger = Panel.of(WORLD, "test", 20)
    assert larger.difference() == ""
    wrong = (*larger.tasks[:3], replace(larger.tasks[3], seed=1), *larger.tasks[4:])
    assert "countdown/test/16" in replace(larger, tasks=wrong).difference()
    small = Panel("countdown/test/4", wrong[:4]).with_published_hashes(WORLD)
    assert small.difference() == "", "nothing is published that it could begin with"


def test_panel_with_another_name_or_version_is_not_checked():
    turned = tuple(reversed(PANEL.tasks))
    assert Panel("mine", turned).with_published_hashes(WORLD).difference() == ""
    assert Panel(PANEL.name, turned, "of my own").with_published_hashes(WORLD).difference() == ""
    assert Panel(PANEL.name, turned).with_published_hashes(get_environment("cooking")).difference() == ""
    assert PANEL.version == WORLD.panel_version == "1"


def write(path: Path, *lines) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_panel_round_trip(tmp_path):
    whole = write(tmp_path / "p.json", json.dumps(PANEL.to_json()))
    lines = write(tmp_path / "p.jsonl", {"name": "p", "version": "7"}, *(asdict(t) for t in PANEL.tasks))
    assert read_panel(whole).hash == read_panel(lines).hash == PANEL.hash
    assert read_panel(whole).name == PANEL.name and read_panel(lines).version == "7"


def test_missing_task_fields_get_defaults(tmp_path):
    file = write(tmp_path / "p.jsonl", {"name": "p", "version": "1"}, ONE)
    (task,) = read_panel(file, "countdown").tasks
    assert (task.world, task.family, task.split, task.seed) == ("countdown", "own", "own", 0)
    file = write(tmp_path / "q.jsonl", {"name": "p", "version": "1", "world": "countdown"}, ONE)
    assert read_panel(file).tasks == (task,)


def test_unicode_line_separator_in_a_goal_is_kept(tmp_path):
    task = {**ONE, "goal": "one\u2028two"}
    file = tmp_path / "p.jsonl"
    file.write_text('{"name": "p", "version": "1"}\n' + json.dumps(task, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_panel(file, "countdown").tasks[0].goal == "one\u2028two"


HEAD = {"name": "p", "version": "1", "world": "countdown"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((ONE,), "the first line of a panel names it"),
        ((), "the first line of a panel names it"),
        (({"name": "p"}, ONE), 'it has no "version"'),
        ((HEAD,), "has no tasks"),
        ((HEAD, ONE, "{half\n"), "line 3: not valid JSON"),
        ((HEAD, ONE, ONE), r"line 3: task id 'mine/1' is already used \(.*line 2\)"),
        ((HEAD, {"goal": "x"}), 'line 2: it has no "id"'),
        ((HEAD, {**ONE, "gaol": "x"}), "line 2: unknown field 'gaol' of a task. Did you mean 'goal'"),
        ((HEAD, {**ONE, "seed": "3"}), "line 2: seed must be a whole number, not '3'"),
        ((HEAD, {**ONE, "data": [1]}), "line 2: data must be an object"),
        ((HEAD, {**ONE, "id": 3}), 'line 2: "id" must be text, not 3'),
        ((HEAD, [1]), "line 2: a task is an object"),
        (({"name": "p", "version": "1"}, ONE), "line 2: the task has no world"),
        ((HEAD, ONE, {**ONE, "id": "2", "world": "cooking"}), r"tasks of several worlds \(cooking, countdown\)"),
    ],
)
def test_bad_panel_names_line_and_reason(tmp_path, lines, message):
    with pytest.raises(TacitError, match=message):
        read_panel(write(tmp_path / "p.jsonl", *lines))


def test_file_that_is_not_a_panel_is_refused(tmp_path):
    with pytest.raises(TacitError, match=r"cannot read the panel .*: No such file"):
        read_panel(tmp_path / "nothing.json")
    with pytest.raises(TacitError, match='an object with "name", "version" and a list "tasks"'):
        read_panel(write(tmp_path / "list.json", "[1, 2]"))
    (tmp_path / "noise.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TacitError, match="cannot read the panel"):
        read_panel(tmp_path / "noise.json")
