"""ReuseRL from the command line: exact resume and `tacit inspect dictionary`, also for GRPO runs."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from skilled import ABC, won

from tacit.cli.inspect import behavior_table, mark_phrases, step_table
from tacit.cli.main import main
from tacit.companions.dictionary import Dictionary, SkillDictionary
from tacit.core.world import Alphabet
from tacit.evaluation.behavior import Behavior
from tacit.report.recorded import DictionaryHistory
from tacit.runs.directory import read_metrics, read_summary

RECIPE = """
world = "countdown"
model = "tiny-0.5m"
tasks = 4
max_steps = 5
checkpoint_every = 1

[schedule]
groups = 4
group_size = 4
iterations = 2
lr = 1e-4

[sft]
steps = 120
batch = 16
tasks = 4
lr = 3e-3

[evaluation]
tasks = 4
untrained = false
max_steps = 3

[engine]
device = "cpu"
threads = 1

[tiny]
vocab = 512
hidden = 64
layers = 2
heads = 2
kv_heads = 2
intermediate = 128
"""


def train(*words: str | Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        assert main(["train", *map(str, words)]) == 0


def companion_state(run: Path, checkpoint: str = "rl-000002") -> dict:
    return json.loads((run / "checkpoints" / checkpoint / "companions" / "dictionary" / "dictionary.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Runs `whole` and `plain` are complete; `half` stopped after one iteration; `resumed` continues a copy of it."""
    place = tmp_path_factory.mktemp("reuserl")
    (place / "recipe.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        recipe = ("--config", place / "recipe.toml")
        train(*recipe, "--method", "reuserl", "--iterations", "1", "--out", place / "half")
        shutil.copytree(place / "half", place / "resumed")
        train("--resume", place / "resumed", "--iterations", "2")
        train(*recipe, "--method", "reuserl", "--out", place / "whole")
        train(*recipe, "--method", "grpo", "--iterations", "1", "--out", place / "plain")
        train(*recipe, "--iterations", "1", "--sft.steps", "1", "--families", "four_numbers", "--out", place / "families")
    return place


@pytest.mark.slow
def test_resumed_reuserl_run_equals_uninterrupted_run(runs):
    whole, resumed = companion_state(runs / "whole"), companion_state(runs / "resumed")
    assert whole["phrases"] and len(whole["buffer"]) > 4, "the overfitted policy succeeds, and its successes compress"
    assert whole["history"]["iteration"] == 2 and whole == resumed
    assert read_summary(runs / "whole")["digest"] == read_summary(runs / "resumed")["digest"]
    timing = ("at", "seconds", "tokens_per_s", "dictionary_seconds")
    metrics = [
        [{k: v for k, v in r.items() if k not in timing and not k.startswith("seconds_")} for r in read_metrics(file)]
        for file in (runs / name / "metrics.jsonl" for name in ("whole", "resumed"))
    ]
    assert metrics[0] == metrics[1]
    first, second = [r for r in metrics[0] if r["stage"] == "rl"]
    assert second["success_buffer"] > first["success_buffer"] > 0 and first["description_length"] > 0


@pytest.mark.slow
def test_recorded_rewards_are_shaped(runs):
    from tacit.runs.trajectories import read_records

    records = read_records(runs / "whole" / "trajectories" / "rl-000002.jsonl.gz")
    rewards = {round(sum(turn["reward"] for turn in r["turns"]), 3) for r in records if r["success"]}
    assert rewards and all(10 - 10 * 5 / 30 <= reward <= 10 - 10 * 1 / 30 + 1e-3 for reward in rewards)


@pytest.mark.slow
def test_inspect_dictionary_prints_all_sections(runs, capsys):
    assert main(["inspect", "dictionary", str(runs / "whole")]) == 0
    out = capsys.readouterr().out
    state = companion_state(runs / "whole")
    merged = len(state["phrases"])
    assert "skill dictionary, checkpoint rl-000002" in out
    assert f"{26 + merged}: 26 single skills and {merged} merged" in out
    assert f"{len(state['buffer'])} successes" in out
    for phrase in state["phrases"]:
        assert " → ".join(phrase) in out
    assert "below the" in out and "bits of single skills" in out and "(Proposition 4" in out
    for title in ("Merged phrases", "Description length (Eq. 3) and bound (Theorem 3)", "Episodes of rl-000002", "Behavior"):
        assert title in out
    assert "won  countdown/train/" in out and "successes without a reset" in out and "operations: " in out


@pytest.mark.slow
def test_inspect_dictionary_as_json(runs, capsys):
    assert main(["inspect", "dictionary", str(runs / "whole"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert {tuple(p["phrase"]) for p in output["phrases"]} == {tuple(p) for p in companion_state(runs / "whole")["phrases"]}
    assert [step["step"] for step in output["steps"]] == [1, 2] and all(s["mdl_bound"] > s["mdl_loss"] for s in output["steps"])
    assert set(output["behaviour"]) == {"training, iteration 2", "evaluation after rl 2"}
    assert output["behaviour"]["training, iteration 2"]["successes"] > 0
    assert output["episodes"][0]["success"] and len(output["episodes"]) == 8
    tasks = [episode["task"] for episode in output["episodes"] if episode["success"]]
    solved = len(set(tasks))
    assert len(set(tasks[:solved])) == solved > 1, "one success of each task before a second of any"
    known = {tuple(p) for p in companion_state(runs / "whole")["phrases"]}
    assert all(len(s) == 1 or tuple(s) in known for episode in output["episodes"] for s in episode["segments"])
    uses = [p["uses"] for p in output["phrases"]]
    assert uses == sorted(uses, reverse=True) and all(1 <= p["since"] <= 2 for p in output["phrases"])


@pytest.mark.slow
def test_inspect_dictionary_of_an_earlier_checkpoint(runs, capsys):
    arguments = ["inspect", "dictionary", str(runs / "whole"), "--checkpoint", "rl-000001", "--json"]
    assert main(arguments) == 0
    output = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in output["steps"]] == [1] and output["source"] == "checkpoint rl-000001"


@pytest.mark.slow
def test_dictionary_of_a_grpo_run_is_extracted_from_its_episodes(runs, capsys):
    """The first iteration of GRPO plays the same episodes as that of ReuseRL, so both give the same dictionary."""
    assert main(["inspect", "dictionary", str(runs / "plain"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["source"] == "extracted from 1 recorded iterations"
    assert [p["phrase"] for p in output["phrases"]] and {tuple(p["phrase"]) for p in output["phrases"]} == {
        tuple(p) for p in companion_state(runs / "half", "rl-000001")["phrases"]
    }


@pytest.mark.slow
def test_dictionary_of_a_run_with_selected_families(runs, capsys):
    assert main(["inspect", "dictionary", str(runs / "families"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["episodes"] and set(output["behaviour"]) == {"training, iteration 1", "evaluation after rl 1"}


@pytest.mark.slow
def test_dictionary_without_checkpoints_is_extracted_from_episodes(runs, capsys, tmp_path):
    """Extraction with the run's settings gives the saved phrases, uses and description lengths."""
    bare = tmp_path / "bare"
    shutil.copytree(runs / "whole", bare, ignore=shutil.ignore_patterns("checkpoints"))
    outputs = []
    for run in (runs / "whole", bare):
        assert main(["inspect", "dictionary", str(run), "--json"]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    saved, again = outputs
    assert again["source"] == "extracted from 2 recorded iterations" and again["phrases"] == saved["phrases"]
    for name in ("description_length", "mdl_bound", "success_buffer"):
        assert [s[name] for s in again["steps"]] == pytest.approx([s[name] for s in saved["steps"]], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "nowhere is not a run directory"),
        (["RUN", "--iteration", "9"], "iteration 9 is not recorded"),
        (["RUN", "--checkpoint", "sft"], "RL training extracts it"),
        (["RUN", "--checkpoint", "rl-9"], "no checkpoint 'rl-9'"),
        (["RUN", "--top", "0"], "--top 0 must be at least 1"),
        (["PLAIN", "--checkpoint", "best"], "saves no dictionary"),
    ],
)
def test_inspect_dictionary_refuses_bad_arguments(runs, capsys, words, reason):
    places = {"RUN": str(runs / "whole"), "PLAIN": str(runs / "plain")}
    assert main(["inspect", "dictionary", *(places.get(word, word) for word in words)]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.slow
def test_run_without_dictionary_or_episodes_is_refused(runs, capsys, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(runs / "plain" / "settings.json", bare)
    assert main(["inspect", "dictionary", str(bare)]) == 2
    assert "neither a dictionary nor recorded iterations" in capsys.readouterr().err


def a_story(*batches: tuple[str, ...]) -> DictionaryHistory:
    """The history of a dictionary over {A, B, C} without a buffer, after these batches of successes."""
    companion, steps = SkillDictionary(ABC, horizon=20, buffer=0), []
    for number, batch in enumerate(batches, 1):
        steps.append({"step": number, **companion.observe([won(*batch)])})
    return DictionaryHistory(companion, "here", steps)


def test_merged_phrases_are_marked():
    assert mark_phrases([("A", "B"), ("C",)]).plain == "[A→B] C" and mark_phrases([]).plain == "no skill"


def test_description_length_is_the_sum_of_its_parts():
    """|B| is recovered from the metrics. The parts add up to Eq. 3, and single skills need more bits."""
    corpus = ["ABAB", "ABC", "ABAB", "CAB"] * 5
    story = a_story(tuple(corpus))
    (reading,) = story.readings()
    code = story.companion.dictionary
    bits, single_bits = reading["description_length"], reading["single_bits"]
    assert (reading["successes"], reading["dictionary_size"]) == (20, len(code))
    assert bits == pytest.approx(code.description_length([tuple(s) for s in corpus]))
    assert single_bits == pytest.approx(Dictionary(ABC.skills).description_length([tuple(s) for s in corpus]))
    assert bits < single_bits


def test_one_skill_alphabet_has_zero_description_length():
    companion = SkillDictionary(Alphabet(("A",), ABC.project), horizon=20, max_phrase=1)
    story = DictionaryHistory(companion, "here", [{"step": 1, **companion.observe([won("AA", "A")])}])
    (reading,) = story.readings()
    assert (reading["description_length"], reading["single_bits"]) == (0.0, 0.0)


def test_history_keeps_only_current_phrases():
    story = a_story(("AB",) * 40, ("BC",) * 30, ("BC",) * 60)
    assert [p["since"] for p in story.companion.history.current_phrases()] == [2]


def test_behavior_table_fills_missing_entries_with_zero():
    empty: dict[str, float | None] = dict.fromkeys(("success_length", "failure_length", "invalid", "repeats"))
    burned = Behavior(10, 8, **empty, failures={"burned": 1.0}, per_success={"COOK": 1.5})
    timed_out = Behavior(10, 8, **empty, failures={"timeout": 1.0}, per_success={"CUT": 2.0})
    lost = Behavior(10, 0, **empty, failures={"burned": 1.0})
    table = behavior_table({"a": burned, "b": timed_out, "c": lost})
    cells = [[cell.plain for cell in column.cells] for column in table.columns]
    rows = {row[0]: row[1:] for row in zip(*cells, strict=True)}
    assert rows["failures: burned"] == ("100.0%", "0.0%", "100.0%")
    assert rows["COOK per success"] == ("1.50", "0.00", "-") and rows["CUT per success"] == ("0.00", "2.00", "-")


def test_step_table_shows_at_most_twelve_rows():
    numbers = dict.fromkeys(("successes", "dictionary_size", "single_bits", "success_segments", "phrase_length"), 2)
    rows = step_table([{"step": n, "description_length": 1.0, **numbers} for n in range(1, 301)])
    assert rows.row_count == 12 and [list(rows.columns[0].cells)[i].plain for i in (0, -1)] == ["1", "300"]
