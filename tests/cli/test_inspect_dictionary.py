"""ReuseRL through the command line: it trains, resumes exactly, and its dictionary can be read; so can GRPO's."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from tacit.cli.inspection.dictionary_view import coloured, step_table
from tacit.cli.main import main
from tacit.training.metrics import read_metrics
from tacit.training.run import read_summary

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
    (state,) = json.loads((run / "checkpoints" / checkpoint / "state.json").read_text())["companions"]
    return state


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """`whole` and `plain` ran through; `half` stopped after the first iteration of the same training."""
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
    return place


def test_it_learns_a_dictionary_and_resumes_exactly(runs):
    whole, resumed = companion_state(runs / "whole"), companion_state(runs / "resumed")
    assert whole["phrases"] and len(whole["buffer"]) > 4, "the overfitted policy succeeds, and its successes compress"
    assert whole["history"]["iteration"] == 2 and whole == resumed
    assert read_summary(runs / "whole")["digest"] == read_summary(runs / "resumed")["digest"]
    timing = {"at", "seconds", "tokens_per_s", "dictionary_seconds"}
    told = [
        [{k: v for k, v in r.items() if k not in timing} for r in read_metrics(runs / name / "metrics.jsonl")]
        for name in ("whole", "resumed")
    ]
    assert told[0] == told[1]
    first, second = [r for r in told[0] if r["stage"] == "rl"]
    assert second["success_buffer"] > first["success_buffer"] > 0 and first["description_length"] > 0


def test_rewards_on_record_are_the_shaped_ones(runs, capsys):
    assert main(["inspect", "dictionary", str(runs / "whole"), "--json", "--no-plot"]) == 0
    told = json.loads(capsys.readouterr().out)
    from tacit.training.records import read_records

    records = read_records(runs / "whole" / "trajectories" / "rl-000002.jsonl.gz")
    paid = {round(sum(turn["reward"] for turn in r["turns"]), 3) for r in records if r["success"]}
    assert paid and all(10 - 10 * 5 / 30 <= reward <= 10 - 10 * 1 / 30 + 1e-3 for reward in paid)
    assert told["plot"] is None


def test_the_whole_view(runs, capsys):
    assert main(["inspect", "dictionary", str(runs / "whole")]) == 0
    out = capsys.readouterr().out
    state = companion_state(runs / "whole")
    merged = len(state["phrases"])
    assert "skill dictionary, checkpoint rl-000002" in out
    assert f"{26 + merged}: 26 single skills and {merged} merged" in out
    assert f"{len(state['buffer'])} successes" in out
    for phrase in state["phrases"]:
        assert " ".join(phrase) in out
    for title in ("Merged phrases", "Description length (Eq. 3) and bound (Theorem 3)", "Episodes of rl-000002", "Behaviour"):
        assert title in out
    assert "won  countdown/train/" in out and "successes without a reset" in out and "operations: " in out
    assert (runs / "whole" / "dictionary.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_as_json(runs, capsys, tmp_path):
    plot = tmp_path / "it.png"
    assert main(["inspect", "dictionary", str(runs / "whole"), "--json", "--plot", str(plot)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {tuple(p["phrase"]) for p in told["phrases"]} == {tuple(p) for p in companion_state(runs / "whole")["phrases"]}
    assert [step["step"] for step in told["steps"]] == [1, 2] and all(s["mdl_bound"] > s["mdl_loss"] for s in told["steps"])
    assert set(told["behaviour"]) == {"training, iteration 2", "evaluation after rl 2"}
    assert told["behaviour"]["training, iteration 2"]["successes"] > 0 and plot.exists()
    uses = [p["uses"] for p in told["phrases"]]
    assert uses == sorted(uses, reverse=True) and all(1 <= p["since"] <= 2 for p in told["phrases"])


def test_an_earlier_checkpoint(runs, capsys):
    arguments = ["inspect", "dictionary", str(runs / "whole"), "--checkpoint", "rl-000001", "--json", "--no-plot"]
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in told["steps"]] == [1] and told["source"] == "checkpoint rl-000001"


def test_a_run_without_a_dictionary_is_read_from_its_episodes(runs, capsys):
    """The first iteration of GRPO plays the same episodes as ReuseRL's: the dictionary that is extracted is the same."""
    assert main(["inspect", "dictionary", str(runs / "plain"), "--json", "--no-plot"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["source"] == "extracted from 1 recorded iterations"
    assert [p["phrase"] for p in told["phrases"]] and {tuple(p["phrase"]) for p in told["phrases"]} == {
        tuple(p) for p in companion_state(runs / "half", "rl-000001")["phrases"]
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "there is no settings.json"),
        (["RUN", "--iteration", "9"], "iteration 9 is not recorded"),
        (["RUN", "--checkpoint", "sft"], "it comes with practice"),
        (["RUN", "--checkpoint", "rl-9"], "no checkpoint 'rl-9'"),
        (["RUN", "--top", "0"], "--top must be at least 1"),
        (["PLAIN", "--checkpoint", "best"], "saves no dictionary"),
    ],
)
def test_mistakes(runs, capsys, words, reason):
    places = {"RUN": str(runs / "whole"), "PLAIN": str(runs / "plain")}
    assert main(["inspect", "dictionary", *(places.get(word, word) for word in words)]) == 2
    assert reason in capsys.readouterr().err


def test_nothing_recorded_and_nothing_saved(runs, capsys, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(runs / "plain" / "settings.json", bare)
    assert main(["inspect", "dictionary", str(bare)]) == 2
    assert "neither a dictionary nor recorded iterations" in capsys.readouterr().err


def test_phrases_keep_their_colour():
    first, again = coloured([("A", "B"), ("C",), ("A", "B")]).spans[0::2]
    assert first.style == again.style and coloured([("C",)]).spans[0].style == "dim"
    assert coloured([("A", "B"), ("C",)]).plain.strip() == "[A B] C"


def test_long_trainings_are_shown_in_a_dozen_rows():
    step = {"dictionary_size": 5, "description_length": 1.0, "success_segments": 1.0, "phrase_length": 1.0}
    rows = step_table([{"step": n, **step} for n in range(1, 301)])
    assert rows.row_count == 12 and [list(rows.columns[0].cells)[i].plain for i in (0, -1)] == ["1", "300"]
