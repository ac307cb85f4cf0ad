"""Imitation of recorded episodes: same samples as live demonstrations, and a reason for every unusable line."""

from __future__ import annotations

import gzip
import json
import lzma
from itertools import pairwise
from pathlib import Path

import pytest
from scripted import Words

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.prompts.history import History, StateBlock
from tacit.training.demonstrations import Demonstrations, demonstrate
from tacit.training.imitation import imitate_recordings
from tacit.worlds import get_environment
from tacit.worlds.alfworld.published import load_games

WORLD = get_environment("alfworld")
TASKS = WORLD.tasks("train", 8, 0)
LISTED = History(WORLD.wording("terse"), turns=1, admissible=True, style="bare")
BLOCK = StateBlock(WORLD.wording("terse"), WORLD.tracker)


def episode(task: Task, /, **more) -> dict:
    """The expert's episode as a log line."""
    world, expert = WORLD.make(), WORLD.expert()(task)
    observation, turns, won = world.reset(task), [], False
    while not won and len(turns) < 50:
        action = expert.act(observation)
        turns.append({"observation": observation.text, "action": action})
        transition = world.step(action)
        observation, won = transition.observation, transition.success
    return {"goal": task.goal, "success": won, "turns": turns, **more}


def write(path: Path, *lines) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def read(path: Path, context=LISTED, tasks=TASKS, most=1000, **more) -> tuple[Demonstrations, str]:
    examples, notes = imitate_recordings(path, WORLD, tasks, context, Words(), most, **more)
    return examples, " | ".join(notes)


def same(one: Demonstrations, other: Demonstrations) -> bool:
    pairs = zip(one.prompts + one.completions, other.prompts + other.completions, strict=True)
    return len(one) == len(other) and all(a.tolist() == b.tolist() for a, b in pairs)


@pytest.mark.parametrize("name", ["episodes.jsonl", "episodes.jsonl.gz"])
@pytest.mark.parametrize("known_by", ["task", "goal"])
def test_recorded_episodes_equal_live_demonstrations(tmp_path, name, known_by):
    """Replay in the world also restores the admissible actions, which the file does not have."""
    lines = [episode(task, **({"task": task.id} if known_by == "task" else {})) for task in TASKS]
    examples, notes = read(write(tmp_path / name, *lines))
    assert same(examples, demonstrate(WORLD, TASKS, LISTED, Words(), 50))
    assert (examples.episodes, examples.won) == (8, 8) and "8 episodes replayed as recorded" in notes


def test_episodes_of_unknown_tasks_are_used_as_recorded(tmp_path):
    """Without a simulator there are no admissible actions, and the state block comes from the text."""
    text = StateBlock(WORLD.wording("terse"), WORLD.tracker_of("text"))
    examples, notes = read(write(tmp_path / "e.jsonl", *map(episode, TASKS)), text, tasks=())
    assert same(examples, demonstrate(WORLD, TASKS, text, Words(), 50)) and "8 are of tasks unknown to this run" in notes


def test_episodes_that_replay_differently_are_counted_and_used_as_recorded(tmp_path):
    other = episode(TASKS[0], task=TASKS[0].id)
    other["turns"][1]["observation"] = "On the shelf 9, you see a unicorn 1."
    words = Words()
    examples, notes = imitate_recordings(write(tmp_path / "e.jsonl", other), WORLD, TASKS, BLOCK, words, 1000)
    assert notes[0] == "used as recorded, since their replay differs: 1 episode, line 1, turn 2"
    assert any("unicorn" in words.decode(prompt) for prompt in examples.prompts) and examples.won == 1


def test_replay_overrides_a_wrong_success_flag(tmp_path):
    """If the replay matches the record but does not win, the episode counts as lost."""
    good, unwon = episode(TASKS[0], task=TASKS[0].id), episode(TASKS[1], task=TASKS[1].id)
    del unwon["turns"][-1]
    examples, notes = read(write(tmp_path / "e.jsonl", unwon, good))
    assert same(examples, read(write(tmp_path / "f.jsonl", good))[0]) and (examples.episodes, examples.won) == (2, 1)
    assert "1 episode replayed as recorded, 0 are of tasks unknown to this run, 1 were lost" in notes
    assert "1 of the lost ones are marked as won, but their replay loses: line 1" in notes


def test_every_unusable_line_is_named_with_its_reason(tmp_path):
    good = episode(TASKS[0])
    lines = [
        *("{", "[1]", {**good, "turns": []}, {"goal": good["goal"], "turns": good["turns"]}),
        *({**good, "goal": ""}, {**good, "turns": [{"action": "look"}]}, {**good, "success": False}, good),
    ]
    examples, notes = read(write(tmp_path / "e.jsonl", *lines))
    assert examples.won == 1 and "6 lines cannot be used: line 1: " in notes and "1 were lost" in notes
    assert "line 2: not a JSON object; line 3: no turns; line 4: does not say whether it was won" in notes
    assert "line 5: names neither a task nor a goal; and 1 more" in notes
    _, notes = read(write(tmp_path / "f.jsonl", {**good, "goal": "fly to the moon."}, good), BLOCK)
    assert "line 1: TacitError: the goal 'fly to the moon.' is not an ALFWorld goal; an example of one is " in notes
    assert "0 are of tasks unknown to this run" in notes, "a line is counted once"


def test_invalid_turns_are_in_the_history_but_not_imitated(tmp_path):
    line = episode(TASKS[0], task=TASKS[0].id)
    line["turns"][0]["valid"] = False
    examples, _ = read(write(tmp_path / "e.jsonl", line))
    assert len(examples) == len(line["turns"]) - 1


def test_recordings_are_limited_by_number_and_family(tmp_path):
    file = write(tmp_path / "e.jsonl", *(episode(task, family=task.family) for task in TASKS))
    assert read(file, most=3)[0].episodes == 3
    examples, notes = read(file, families=(TASKS[0].family,))
    own = [task for task in TASKS if task.family == TASKS[0].family]
    assert same(examples, demonstrate(WORLD, own, LISTED, Words(), 50))
    assert f"skipped, since they are of other families: {8 - len(own)} episodes" in notes


@pytest.mark.parametrize("lines", [(), ("nonsense",), ({**episode(TASKS[0]), "success": False},)])
def test_recordings_without_a_usable_line_are_refused(tmp_path, lines):
    with pytest.raises(TacitError, match="there is nothing to imitate in"):
        read(write(tmp_path / "e.jsonl", *lines))


def test_unreadable_recording_is_refused(tmp_path):
    damaged = tmp_path / "e.jsonl.gz"
    damaged.write_bytes(b"not gzip")
    with pytest.raises(TacitError, match="cannot read the recorded episodes"):
        read(damaged)


def test_published_alfworld_walkthroughs_replay_exactly(shared_data, tmp_path):
    """The answers of ALFWorld's engine to its expert equal those of our simulator."""
    tasks = load_games(shared_data / "alfworld" / "valid_seen.jsonl.xz").tasks
    names = {task.id.partition("/")[2]: task for task in tasks}
    lines = []
    with lzma.open(shared_data / "alfworld" / "transcripts_valid_seen.jsonl.xz", "rt") as transcripts:
        for record in map(json.loads, transcripts):
            task = names.get(f"{record['task']}/{record['trial']}")
            steps = next(e["steps"] for e in record["episodes"] if e["kind"] == "walkthrough")
            turns = [{"saw": a["feedback"], "action": b["action"]} for a, b in pairwise(steps)]
            if task is not None:
                last = steps[-1]
                lines.append({"task": task.id, "success": last["won"], "turns": turns, "saw": last["feedback"]})
    examples, notes = read(write(tmp_path / "e.jsonl", *lines), BLOCK, tasks)
    assert len(lines) == examples.won > 5 and f"{len(lines)} episodes replayed as recorded" in notes and "differs" not in notes


SMALL = [
    *("train", "--world", "alfworld", "--model", "tiny", "--method", "constant_context", "--tasks", "8", "--iterations", "0"),
    *("--sft.steps", "2", "--sft.batch", "4", "--evaluation.tasks", "2", "--evaluation.max-steps", "2"),
    *("--no-evaluation.untrained", "--engine.device", "cpu", "--engine.threads", "1", "--tiny.vocab", "512"),
    *("--tiny.hidden", "32", "--tiny.layers", "1", "--tiny.heads", "2", "--tiny.kv-heads", "2", "--tiny.intermediate", "64"),
]


@pytest.mark.slow
def test_run_starts_from_recorded_episodes(tmp_path, monkeypatch, capsys):
    """`--sft.from` on the command line and `from` in a recipe give the same run."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path / "e.jsonl", *(episode(task, task=task.id) for task in TASKS))
    assert main([*SMALL, "--sft.from", str(file), "--out", str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    assert f"turns recorded in {file}" in output.replace("\n", "") and "8 episodes replayed as recorded" in output
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["sft"]["from"] == str(file)
    recipe = tmp_path / "again.toml"
    recipe.write_text(f'[sft]\nfrom = "{file}"\n')
    assert main([*SMALL, "--config", str(recipe), "--out", str(tmp_path / "again")]) == 0
    digests = [json.loads((tmp_path / run / "summary.json").read_text())["digest"] for run in ("run", "again")]
    assert digests[0] == digests[1]
    assert main([*SMALL, "--sft.from", str(tmp_path / "nowhere"), "--out", str(tmp_path / "no")]) == 2
    assert "the file does not exist" in capsys.readouterr().err
