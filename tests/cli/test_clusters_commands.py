"""BiPACE from the command line: it trains, its clusters can be looked at, and a calibration is picked up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_encoder import save_encoder

from tacit.assembly import toolbox
from tacit.assembly.checks import open_world, prepare
from tacit.assembly.known_base import calibration_place, known_base
from tacit.assembly.recipe import Recipe
from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.runs.directory import read_settings, read_summary

SMALL = """
world = "countdown"
model = "tiny-0.5m"
max_steps = 4
tasks = 16
[method]
name = "bipace"
[tiny]
vocab = 512
hidden = 48
heads = 3
kv_heads = 3
intermediate = 64
layers = 3
context = 192
[sft]
steps = 30
batch = 32
tasks = 16
lr = 3e-3
[schedule]
groups = 3
group_size = 4
iterations = 2
lr = 1e-4
[evaluation]
tasks = 4
untrained = false
max_steps = 4
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two iterations, made once."""
    place = tmp_path_factory.mktemp("bipace")
    patch = pytest.MonkeyPatch()
    patch.setenv("TACIT_CACHE", str(place / "cache"))
    (place / "small.toml").write_text(SMALL)
    assert main(["train", "--config", str(place / "small.toml"), "--out", str(place / "run")]) == 0
    yield place
    patch.undo()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_bipace_trains(trained):
    summary = read_summary(trained / "run")
    assert summary["method"] == "bipace" and summary["iterations"] == 2
    practised = [line for line in lines(trained / "run" / "metrics.jsonl") if line["stage"] == "rl"]
    assert len(practised) == 2
    for line in practised:
        assert line["parts"] >= 1 and 0 <= line["parts_singleton"] <= 1 and line["parts_mean_size"] >= 1
        assert line["pace_used"] + line["pace_leave_one_out"] + line["pace_zero"] == pytest.approx(1.0, abs=1e-4)
        assert line["grad_norm"] >= 0
    said = read_settings(trained / "run")["method"]
    assert (said["layer"], said["pooling"], said["epsilon"]) == (-2, "last", 0.1), "what was decided is written down"


def test_its_clusters_can_be_looked_at(trained, capsys):
    assert main(["inspect", "clusters", str(trained / "run"), "--all"]) == 0
    shown = capsys.readouterr().out
    assert "as bipace made them" in shown and "part 0:" in shown
    # each step says which of the part's observations it saw, and what it got; the largest part comes first
    first = shown.split("part 0:")[1].split("part 1:")[0]
    seen = set(re.findall(r"^  saw (\d+)", first, re.MULTILINE))
    told = re.findall(r"^ *[+-]\d+\.\d+ +[+-]\d+\.\d+ .* saw (\d+), episode \d, step \d, (?:won|lost)$", first, re.MULTILINE)
    assert seen == set(told) and f"{len(told)} steps, {len(seen)} observations" in first
    assert main(["inspect", "clusters", str(trained / "run"), "--iteration", "1", "--group", "0", "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)
    assert recorded["by"] == "recorded" and recorded["file"].endswith("rl-000001.jsonl.gz")
    members = [step for part in recorded["members"] for step in part]
    assert {step["member"] for step in members} == set(range(4)) and recorded["parts"] == len(recorded["members"])
    # every part holds the steps that were recorded as one, and their credit is what they were given
    assert all(len({step["part"] for step in part}) == 1 for part in recorded["members"])
    for by in ("identity", "ngram"):
        assert main(["inspect", "clusters", str(trained / "run"), "--by", by, "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        if by == "identity":
            assert all(len({step["saw"] for step in part}) == 1 for part in again["members"])


def test_steps_may_be_compared_by_a_sentence_encoder(trained, tmp_path, capsys):
    words = [
        "train",
        "--config",
        str(trained / "small.toml"),
        "--embedder",
        "sentence",
        "--sft.steps",
        "0",
        "--iterations",
        "1",
    ]
    save_encoder(tmp_path / "encoder")
    assert main([*words, "--encoder", str(tmp_path / "encoder"), "--out", str(tmp_path / "run")]) == 0
    (line,) = [line for line in lines(tmp_path / "run" / "metrics.jsonl") if line["stage"] == "rl"]
    assert line["parts"] >= 3, "three groups"
    assert main([*words, "--encoder", str(tmp_path / "nothing"), "--out", str(tmp_path / "other")]) == 2
    assert "cannot load the sentence encoder" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_a_layer_is_checked_against_the_model_once_it_is_loaded(monkeypatch):
    """Only where hidden states are compared: text needs no layer."""
    asked: list[int] = []
    policy = SimpleNamespace(check_layer=asked.append)
    monkeypatch.setattr(toolbox, "load_policy", lambda *_: policy)
    for words, expected in (({"layer": -3}, [-3]), ({"embedder": "ngram"}, []), ({"pooling": "mean", "layer": -2}, [-2])):
        asked.clear()
        recipe = Recipe.from_json({"world": "countdown", "method": {"name": "bipace", **words}})
        assert prepare(recipe).toolbox.open() is policy and asked == expected


def test_what_cannot_be_looked_at(trained, capsys, tmp_path):
    run = str(trained / "run")
    for words, reason in [
        (["inspect", "clusters", run, "--iteration", "9"], "there are 1 to 2"),
        (["inspect", "clusters", run, "--group", "nowhere"], "unknown group"),
        (["inspect", "clusters", run, "--by", "colour"], "unknown partition"),
        (["inspect", "clusters", str(tmp_path)], "no settings.json"),
        (["inspect", "cluster", run], "Did you mean 'clusters'"),
    ]:
        assert main(words) == 2
        assert reason in capsys.readouterr().err
    assert main(["inspect"]) == 0 and "clusters" in capsys.readouterr().out


def test_a_calibration_is_made_saved_and_picked_up(trained, capsys, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(trained / "cache"))
    recipe = Recipe.resolve(trained / "small.toml", {})
    world = open_world(recipe.world)
    assert known_base(recipe, world).calibrated == {}
    words = ["calibrate", str(trained / "run"), "--min-clusters", "2", "--json"]
    assert main([*words, "--epsilons", "0.02,0.1"]) == 0
    shown = capsys.readouterr().out
    assert sum(line.rstrip().endswith("chosen") for line in shown.splitlines()) == 1
    result = json.loads(shown.splitlines()[-1])
    assert result["played_by"] == "recorded" and result["steps"] > 20
    assert {(s["layer"], s["pooling"]) for s in result["slices"]} == {
        (layer, pooling) for layer in (-3, -2, -1) for pooling in ("last", "mean", "attention")
    }
    assert 0.02 <= result["epsilon"] <= 0.40
    place = calibration_place(recipe, world)
    assert place.exists() and place.with_suffix(".png").stat().st_size > 1000
    picked = prepare(recipe).recipe
    found = (result["layer"], result["pooling"], result["epsilon"])
    assert (picked.settings.layer, picked.settings.pooling, picked.settings.epsilon) == found
    assert "tacit calibrate" in picked.notes[-1] and picked.notes[-1].endswith("in this world and context")
    assert main([*words[:2], "--play", "expert", "--members", "2", "--tasks-each", "1", "--layers=-1", "--poolings", "last",
                 "--epsilons", "0.05", "--min-clusters", "1", "--out", str(trained / "other.json")]) == 0  # fmt: skip
    assert json.loads((trained / "other.json").read_text())["played_by"] == "expert"
    # another backbone, another file; what the user says wins, and a radius is not used with another layer
    assert calibration_place(replace(recipe, tiny=replace(recipe.tiny, layers=4)), world) != place
    assert calibration_place(replace(recipe, settings=replace(recipe.settings, history=0)), world) != place, "another prompt"
    assert calibration_place(recipe, open_world("cooking")) != place, "another world"
    own = prepare(replace(recipe, settings=replace(recipe.settings, layer=-1 if result["layer"] != -1 else -2))).recipe
    assert own.settings.epsilon == 0.10
    searching = prepare(replace(recipe, settings=replace(recipe.settings, adaptive=True))).recipe.settings
    assert (searching.layer, searching.pooling, searching.epsilon) == (*found[:2], None), "its radius will be found in training"
    place.write_text("{}")
    with pytest.raises(TacitError, match="run `tacit calibrate` again"):
        known_base(recipe, world)
    place.unlink()


def test_geometry_without_a_calibration(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))

    def settled(model: str, **method):
        document = {"world": "countdown", "model": model, "method": {"name": "bipace", **method}}
        return prepare(Recipe.from_json(document)).recipe.settings

    assert (settled("tiny").layer, settled("tiny").epsilon) == (-2, 0.10), "four layers: at the paper's depth, not the last"
    assert settled("tiny-base").layer == -2, "a packaged base is four layers deep as well"
    assert (settled("owner/name").layer, settled("owner/name").pooling) == (-8, "last")
    assert settled("tiny", embedder="ngram").epsilon == 0.25 and settled("tiny", embedder="ngram").layer is None
    assert settled("tiny", adaptive=True).epsilon is None
    grpo = Recipe.from_json({"world": "countdown"})
    assert prepare(grpo).recipe.settings == grpo.settings
    deep = tmp_path / "deep"
    deep.mkdir()
    (deep / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    assert settled(str(deep)).layer == -2
    with pytest.raises(TacitError, match="layer = -9 does not exist"):
        settled(str(deep), layer=-9)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--layer", "-9"], "layer = -9 does not exist in 'tiny', which has 4"),
        (["--model", "tiny-base", "--layer", "7"], "layer = 7 does not exist in 'tiny-base', which has 4"),
        (["--epsilon", "2.5"], "must be between 0 and 2"),
        (["--epsilon", "0.1", "--adaptive"], "leave one of them out"),
        (["--key-tokens", "0"], "must be at least 1"),
        (["--step-weight", "-1"], "must not be negative"),
        (["--embedder", "colour"], "embedder"),
    ],
)
def test_bad_geometry_is_refused_before_anything_is_loaded(words, reason, capsys, tmp_path):
    command = ["train", "--world", "countdown", "--method", "bipace", "--out", str(tmp_path / "run"), *words]
    assert main(command) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tiny"], "--world"),
        (["tiny", "--world", "countdown", "--poolings", "sum"], "unknown pooling"),
        (["tiny", "--world", "countdown", "--epsilons", "0.1,x"], "list of numbers"),
        (["tiny", "--world", "countdown", "--layers=-9"], "layer -9 does not exist"),
        (["tiny", "--world", "countdown", "--epsilons", "3"], "between 0"),
        (["tiny", "--world", "countdown", "--members", "0"], "--members 0 must be at least 1"),
        (["expert", "--world", "countdown"], "no hidden states"),
    ],
)
def test_calibrations_that_cannot_be_made(words, reason, capsys):
    assert main(["calibrate", *words]) == 2
    assert reason in capsys.readouterr().err
