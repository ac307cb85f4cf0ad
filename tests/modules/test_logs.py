"""Logs sorted by family: assigning families, unusable lines, and hostile names."""

from __future__ import annotations

import json

import pytest
from drafts import GOOD
from household_logs import WORLD, household, write_lines

from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.modules.training import (
    add_log_defaults,
    count_coverage,
    family_without_world,
    find_logs,
    make_family_lookup,
    plan_from_logs,
    read_logs,
    to_jsonl,
)
from tacit.training.imitation import ReadReport, read_recordings


def test_family_is_found_by_name_task_or_goal(tmp_path) -> None:
    tasks = WORLD.tasks_of("train", 6, 0, ["heat", "look"])
    lines = household(6, ["heat", "look"])
    named = {"task": tasks[1].id, "goal": "", "family": ""}
    records = [lines[0], {**lines[1], **named}, {**lines[2], "family": ""}, {**lines[3], "family": "", "goal": "fly."}]
    logs = read_logs([write_lines(tmp_path / "a.jsonl", records)], make_family_lookup(WORLD, tasks))
    assert [logged.family for logged in logs.episodes] == [task.family for task in tasks[:3]]
    assert logs.unusable == [f"{tmp_path / 'a.jsonl'} line 4: no family, and unknown task and goal"]


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".hidden", "x" * 65, "a b", "a\n"])
def test_family_that_cannot_name_a_directory_is_refused(tmp_path, name) -> None:
    logs = read_logs([write_lines(tmp_path / "a.jsonl", [{**household(1)[0], "family": name}])], family_without_world)
    assert not logs.episodes and "cannot be the name of a module" in logs.unusable[0]


def test_written_logs_round_trip(tmp_path) -> None:
    lines = household(2, ["heat"], lost=1)
    lines[0]["turns"][0]["valid"] = False
    file = write_lines(tmp_path / "a.jsonl", lines)
    logs = read_logs([file], family_without_world)
    (tmp_path / "b.jsonl").write_text(to_jsonl(logs.episodes))
    assert list(read_recordings(tmp_path / "b.jsonl", ReadReport())) == [logged.recording for logged in logs.episodes]
    assert json.loads(to_jsonl(logs.episodes[:1]))["source"] == f"{file} line 1"


def test_directories_are_searched_and_each_file_is_read_once(tmp_path) -> None:
    (tmp_path / "in").mkdir()
    inner, outer = write_lines(tmp_path / "in" / "a.jsonl", []), write_lines(tmp_path / "b.jsonl", [])
    (tmp_path / "notes.txt").write_text("no log")
    assert find_logs([tmp_path, outer]) == [outer, inner]
    with pytest.raises(TacitError, match="the file does not exist"):
        find_logs([tmp_path / "no"])


def test_byte_order_mark_is_ignored(tmp_path) -> None:
    """Some editors and shells start every file with a byte order mark."""
    file = write_lines(tmp_path / "a.jsonl", household(2, ["pick"]))
    plain = list(read_recordings(file, ReadReport()))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    reading = ReadReport()
    assert list(read_recordings(file, reading)) == plain and len(plain) == 2 and not reading.unusable


def test_won_episode_that_crashes_the_tracker_is_reported_and_excluded(tmp_path, trusted_code) -> None:
    """It is reported with its line, and is missing from the imitation data and the coverage."""
    raising = GOOD.replace("    words = re", "    assert 'unreadable' not in goal, 'what is this?'\n    words = re")
    (tmp_path / "raising_tracker.py").write_text(raising)
    work = tmp_path / "raising_work.py"
    work.write_text('from tacit.modules.work import work_of\n\nENVIRONMENT = work_of("raising_tracker.py", beside=__file__)\n')
    lines = household(3, ["pick"])
    lines[1]["goal"] = "unreadable"
    file, out = write_lines(tmp_path / "a.jsonl", lines), tmp_path / "out"
    chosen = {"world": f"{work}:ENVIRONMENT", "method": "constant_context", "model": "tiny-base"}
    recipe = Recipe.from_json(add_log_defaults(chosen, [file]))
    taught = plan_from_logs(recipe, "all", out, [file])
    (reason,) = taught.logs.unusable
    assert reason.startswith(f"{file} line 2: ") and "what is this?" in reason
    assert [(each.family, each.episodes, each.won) for each in taught.coverage] == [("pick", 2, 2)]
    assert json.loads((out / "logs" / "coverage.json").read_text())["unusable"] == [reason]
    assert len(list(read_recordings(out / "logs" / "pick.jsonl", ReadReport()))) == 2
    with pytest.raises(TacitError, match=r"no won episode to imitate.*line 1: .*what is this"):
        plan_from_logs(recipe, "all", out, [write_lines(tmp_path / "b.jsonl", lines[1:2])])


def test_coverage_counts_episodes_that_can_be_imitated(tmp_path) -> None:
    logs = read_logs([write_lines(tmp_path / "a.jsonl", household(13, ["heat"], lost=2))], family_without_world)
    heat, cool = count_coverage(logs, ["heat", "cool"])
    assert (heat.episodes, heat.won, heat.remark) == (15, 13, "")
    assert heat.turns == sum(len(logged.recording.actions) for logged in logs.episodes if logged.recording.success)
    assert (cool.episodes, cool.remark) == (0, "none")
