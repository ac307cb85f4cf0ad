"""BiPACE from the command line: training, inspection of clusters and credit, calibration."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from forked import Forked, run_script
from small_encoder import save_encoder

from tacit.cli.inspect import show_credit
from tacit.cli.main import main
from tacit.cli.terminal import make_console
from tacit.config import agents, resources
from tacit.config.agents import open_target
from tacit.config.checks import open_world, prepare
from tacit.config.credit_quality import credit_as_trained, rollout_setup
from tacit.config.recipe import Recipe
from tacit.config.resources import calibration_path, describe_model
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.credit.partitions import ActorHidden, HashNgram, search_radius
from tacit.evaluation.credit_agreement import GroupCredit, MeasuredGroup, quality
from tacit.report.recorded import ClusterStep, partition, returns_of, value_steps
from tacit.runs.directory import read_settings, read_summary
from tacit.runs.trajectories import read_records

ROOT = Path(__file__).resolve().parents[2]
SMALL = """
world = "countdown"
model = "tiny-0.5m"
max_steps = 4
tasks = 16
keep = 9
checkpoint_every = 1
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
    """A BiPACE run of two iterations."""
    place = tmp_path_factory.mktemp("bipace")
    patch = pytest.MonkeyPatch()
    patch.setenv("TACIT_CACHE", str(place / "cache"))
    (place / "small.toml").write_text(SMALL)
    assert main(["train", "--config", str(place / "small.toml"), "--out", str(place / "run")]) == 0
    yield place
    patch.undo()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_bipace_run_records_cluster_metrics_and_geometry(trained):
    summary = read_summary(trained / "run")
    assert summary["method"] == "bipace" and summary["iterations"] == 2
    in_rl = [line for line in lines(trained / "run" / "metrics.jsonl") if line["stage"] == "rl"]
    assert len(in_rl) == 2
    for line in in_rl:
        assert line["parts"] >= 1 and 0 <= line["parts_singleton"] <= 1 and line["parts_mean_size"] >= 1
        assert line["pace_used"] + line["pace_leave_one_out"] + line["pace_zero"] == pytest.approx(1.0, abs=1e-4)
        assert line["grad_norm"] >= 0
    method = read_settings(trained / "run")["method"]
    assert (method["layer"], method["pooling"], method["epsilon"]) == (-2, "last", 0.1), "what was decided is written down"


@pytest.mark.slow
def test_inspect_clusters_shows_recorded_and_recomputed_clusters(trained, capsys):
    assert main(["inspect", "clusters", str(trained / "run"), "--all"]) == 0
    output = capsys.readouterr().out
    assert "recorded by bipace" in output and "cluster 0:" in output
    # Each step shows its observation and its credit. The largest cluster comes first.
    first = output.split("cluster 0:")[1].split("cluster 1:")[0]
    seen = set(re.findall(r"^  saw (\d+)", first, re.MULTILINE))
    rows = re.findall(r"^ *[+-]\d+\.\d+ +[+-]\d+\.\d+ .* saw (\d+), episode \d, step \d, (?:won|lost)$", first, re.MULTILINE)
    assert seen == set(rows) and f"{pluralize(len(rows), 'step')}, {pluralize(len(seen), 'observation')}, " in first
    assert main(["inspect", "clusters", str(trained / "run"), "--iteration", "1", "--group", "0", "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)
    assert recorded["by"] == "recorded" and recorded["file"].endswith("rl-000001.jsonl.gz")
    members = [step for part in recorded["members"] for step in part]
    assert {step["member"] for step in members} == set(range(4)) and recorded["parts"] == len(recorded["members"])
    # Each cluster holds the steps recorded with one part index.
    assert all(len({step["part"] for step in part}) == 1 for part in recorded["members"])
    # R, Q̂, V̂ and the branch of each step explain its recorded credit.
    assert {step["branch"] for step in members} <= {"PACE", "leave one out", "zero"}
    for step in members:
        if step["branch"] == "PACE":
            assert step["q"] - step["v"] == pytest.approx(step["step_credit"], abs=2e-4)
        if step["branch"] == "zero":
            assert step["q"] == step["v"] == step["return"] and step["step_credit"] == 0
    for part in recorded["members"]:
        assert np.mean([step["return"] for step in part]) == pytest.approx(part[0]["v"], abs=2e-4)
    for by in ("identity", "ngram"):
        assert main(["inspect", "clusters", str(trained / "run"), "--by", by, "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        if by == "identity":
            assert all(len({step["saw"] for step in part}) == 1 for part in again["members"])
            assert all(
                s["v"] == pytest.approx(np.mean([s["return"] for s in part]), abs=2e-4)
                for part in again["members"]
                for s in part
            )


@pytest.mark.slow
def test_pace_difference_on_equal_observations_with_token_keys(trained, tmp_path):
    """PACE on exact observations; the first tokens of an action are its key."""
    words = [
        "train",
        "--config",
        str(trained / "small.toml"),
        "--sft.steps",
        "0",
        "--iterations",
        "1",
        "--embedder",
        "identity",
    ]
    names = ["--estimator", "difference", "--action-key", "tokens"]
    assert main([*words, *names, "--out", str(tmp_path / "run")]) == 0
    method = read_settings(tmp_path / "run")["method"]
    assert (method["estimator"], method["action_key"], method["epsilon"]) == ("difference", "tokens", 0.0)
    for record in read_records(tmp_path / "run" / "trajectories" / "rl-000001.jsonl.gz"):
        seen = {}
        for turn in record["turns"]:
            assert seen.setdefault(turn["saw"], turn["part"]) == turn["part"], "equal observations share a part"


def test_step_values_without_recorded_returns_come_from_rewards():
    turns = [
        {"saw": "x", "wrote": "a", "action": a, "valid": True, "reward": r, "credit": 0.0}
        for a, r in zip("aab", (0, 1, 4), strict=True)
    ]
    steps = [ClusterStep(0, 0, turns[0], True), ClusterStep(0, 1, turns[1], True), ClusterStep(1, 0, turns[2], False)]
    assert returns_of(steps, 0.5).tolist() == [0.5, 1.0, 4.0]
    values = value_steps(steps, partition(steps, "identity"), 0.5)
    assert [s.q for s in values] == [0.75, 0.75, 4.0] and {s.v for s in values} == {5.5 / 3}
    assert [s.branch for s in values] == ["PACE", "PACE", "leave one out"]
    nobodys = value_steps(steps, np.array([-1, 0, -1]), 0.5)
    assert [s.branch for s in nobodys] == ["zero"] * 3 and [s.v for s in nobodys] == [0.5, 1.0, 4.0]


@pytest.mark.slow
def test_sentence_encoder_embedder_trains_and_missing_encoder_is_refused(trained, tmp_path, capsys):
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


def test_layer_is_checked_against_the_loaded_model(monkeypatch):
    """Embedders that compare text need no layer."""
    layers: list[int] = []
    policy = SimpleNamespace(check_layer=layers.append)
    monkeypatch.setattr(resources, "load_policy", lambda *_: policy)
    for words, expected in (({"layer": -3}, [-3]), ({"embedder": "ngram"}, []), ({"pooling": "mean", "layer": -2}, [-2])):
        layers.clear()
        recipe = Recipe.from_json({"world": "countdown", "method": {"name": "bipace", **words}})
        assert prepare(recipe).resources.open() is policy and layers == expected


@pytest.mark.slow
def test_inspect_clusters_refuses_bad_arguments(trained, capsys, tmp_path):
    run = str(trained / "run")
    for words, reason in [
        (["inspect", "clusters", run, "--iteration", "9"], "there are 1 to 2"),
        (["inspect", "clusters", run, "--group", "nowhere"], "unknown group"),
        (["inspect", "clusters", run, "--by", "color"], "unknown partition"),
        (["inspect", "clusters", str(tmp_path)], "no settings.json"),
        (["inspect", "cluster", run], "Did you mean 'clusters'"),
    ]:
        assert main(words) == 2
        assert reason in capsys.readouterr().err
    assert main(["inspect"]) == 0 and "clusters" in capsys.readouterr().out


@pytest.mark.slow
def test_calibration_is_saved_and_used_by_the_next_run(trained, capsys, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(trained / "cache"))
    recipe = Recipe.resolve(trained / "small.toml", {})
    world = open_world(recipe.world)
    assert describe_model(recipe, world).calibrated == {}
    words = ["calibrate", str(trained / "run"), "--min-clusters", "2", "--tasks-each", "2", "--json"]
    assert main([*words, "--epsilons", "0.02,0.1"]) == 0
    output = capsys.readouterr().out
    assert sum(line.rstrip().endswith("chosen") for line in output.splitlines()) == 1
    result = json.loads(output.splitlines()[-1])
    assert result["played_by"] == "policy" and result["steps"] > 20
    assert {(s["layer"], s["pooling"]) for s in result["slices"]} == {
        (layer, pooling) for layer in (-3, -2, -1) for pooling in ("last", "mean", "attention")
    }
    assert 0.02 <= result["epsilon"] <= 0.40 and result["epsilon"] == result["radii"]["actor"]["epsilon"]
    assert 0.02 <= result["radii"]["ngram"]["epsilon"] <= 0.40
    assert (result["radius_groups"], result["radius_group_size"]) == (3, 4), "as many as training plays"
    place = calibration_path(recipe, world)
    assert place.exists()
    picked = prepare(recipe).recipe
    found = (result["layer"], result["pooling"], result["epsilon"])
    assert (picked.settings.layer, picked.settings.pooling, picked.settings.epsilon) == found
    assert "tacit calibrate" in picked.notes[-1] and picked.notes[-1].endswith("in this world and context")
    by_text = prepare(replace(recipe, settings=replace(recipe.settings, embedder="ngram"))).recipe.settings
    assert by_text.epsilon == result["radii"]["ngram"]["epsilon"], "n-grams are calibrated too"
    # Another backbone has another file. The user's settings win, and a radius is not used with another layer.
    assert calibration_path(replace(recipe, tiny=replace(recipe.tiny, layers=4)), world) != place
    assert calibration_path(replace(recipe, settings=recipe.settings.with_prompt(history=0)), world) != place, "another prompt"
    assert calibration_path(recipe, open_world("cooking")) != place, "another world"
    own = prepare(replace(recipe, settings=replace(recipe.settings, layer=-1 if result["layer"] != -1 else -2))).recipe
    assert own.settings.epsilon == 0.10
    searching = prepare(replace(recipe, settings=replace(recipe.settings, adaptive=True))).recipe.settings
    assert (searching.layer, searching.pooling, searching.epsilon) == (*found[:2], None), "its radius will be found in training"
    place.write_text("{}")
    with pytest.raises(TacitError, match="run `tacit calibrate` again"):
        describe_model(recipe, world)
    place.unlink()


@pytest.mark.parametrize("words", [["calibrate", "--layers=99"], ["inspect", "credit", "--geometry=99:last"]])
def test_missing_layer_is_refused_before_the_model_is_loaded(words, capsys, monkeypatch):
    monkeypatch.setattr(agents, "load_policy", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(resources, "read_calibration", lambda _: pytest.fail("a damaged calibration must not matter here"))
    assert main([*words, "tiny-base-1", "--world", "countdown"]) == 2
    assert "layer 99 does not exist: this model has layers 0 (embeddings) to 4" in capsys.readouterr().err


@pytest.mark.slow
def test_radius_comes_from_the_policys_first_iteration(trained, capsys, monkeypatch):
    """The radius does not depend on who plays the probe's episodes."""
    monkeypatch.setenv("TACIT_CACHE", str(trained / "cache"))
    words = ["calibrate", str(trained / "run"), "--checkpoint", "sft", "--layers=-1", "--poolings", "last"]
    words += ["--epsilons", "0.05", "--min-clusters", "1", "--tasks-each", "2", "--members", "2"]
    words += ["--out", str(trained / "other.json")]
    found = {}
    for source in ("policy", "expert"):
        assert main([*words, "--play", source]) == 0
        found[source] = json.loads((trained / "other.json").read_text())
        assert found[source]["played_by"] == source
    assert len({json.dumps(result["radii"]) for result in found.values()}) == 1
    assert len({result["steps"] for result in found.values()}) > 1, "the probe's episodes are others"
    # The radius is found on the episodes that training plays first, as recorded in the run.
    target = open_target(str(trained / "run"), {}, "sft")
    groups = rollout_setup(target).collect(1)
    recorded = read_records(trained / "run" / "trajectories" / "rl-000001.jsonl.gz")
    assert [[s.action for s in t.steps] for g in groups for t in g.trajectories] == [
        [turn["action"] for turn in record["turns"]] for record in recorded
    ]
    radius, median = search_radius(ActorHidden(-1, "last")(groups, target.policy))
    assert (found["expert"]["epsilon"], found["expert"]["median_cluster"]) == (radius, median)
    assert found["expert"]["radii"]["ngram"]["epsilon"] == search_radius(HashNgram()(groups))[0]


@pytest.mark.slow
def test_calibrate_leaves_out_an_unavailable_pooling(trained, capsys, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(trained / "cache"))
    monkeypatch.setattr("tacit.engines.local.scoring.has_attention_pooling", lambda hf: False)
    words = ["calibrate", str(trained / "run"), "--epsilons", "0.05", "--min-clusters", "1", "--tasks-each", "2", "--json"]
    assert main([*words, "--out", str(trained / "other.json")]) == 0
    output = capsys.readouterr().out
    assert "skipped pooling attention" in output
    assert {s["pooling"] for s in json.loads(output.splitlines()[-1])["slices"]} == {"last", "mean"}


@pytest.mark.slow
def test_calibrate_reports_fewer_tasks_than_requested(trained, capsys, monkeypatch):
    """The run has sixteen tasks of two families, so --tasks-each 40 cannot be met."""
    monkeypatch.setenv("TACIT_CACHE", str(trained / "cache"))
    words = ["calibrate", str(trained / "run"), "--layers=-1", "--poolings", "last", "--epsilons", "0.05"]
    words += ["--min-clusters", "1", "--members", "1", "--out", str(trained / "other.json")]
    assert main([*words, "--tasks-each", "40"]) == 0
    assert "16 tasks of 80 requested of 2 families" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--tasks-each", "3", "--observations", "1"]) == 0
    assert "4 tasks of 6 requested of 2 families; --observations 1 was reached" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--tasks-each", "2"]) == 0
    assert "requested" not in capsys.readouterr().out


def test_default_geometry_without_calibration(tmp_path, monkeypatch):
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
    (deep / "tokenizer.json").write_text("{}")
    assert settled(str(deep)).layer == -2
    with pytest.raises(TacitError, match="layer = -9 does not exist"):
        settled(str(deep), layer=-9)


@pytest.mark.slow
def test_inspect_credit_compares_estimators_with_monte_carlo_advantages(trained, capsys, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(trained / "cache"))
    words = ["inspect", "credit", str(trained / "run"), "--groups", "2", "--rollouts", "2"]
    assert main([*words, "--checkpoint", "rl-000001", "--methods", "rloo", "--json", str(trained / "credit.json")]) == 0
    output = capsys.readouterr().out
    assert "iteration 2, 2 groups of 4" in output and "credit against Q − V" in output
    result = json.loads((trained / "credit.json").read_text())
    names = {a["estimator"] for a in result["agreements"]}
    # layer with its own and with a searched radius, credit as trained, another method
    assert {"GRPO", "GiGPO", "HGPO", "step returns", "PACE-Q, exact state", "as trained: bipace", "rloo, as published"} <= names
    assert {"BiPACE-Q, layer -2 last, ε 0.1", "BiPACE-diff, layer -2 last, ε searched", "BiGPO, n-grams, ε searched"} <= names
    assert result["continuations"] > result["steps"] and result["fingerprint"] and result["iteration"] == 2
    assert 0.02 <= result["radii"]["layer -2 last, ε searched"] <= 0.40
    # The groups are those that training played next, so the recorded credit must match.
    target = open_target(str(trained / "run"), {}, "rl-000001")
    setup = rollout_setup(target)
    groups = setup.collect(2)
    recorded = read_records(trained / "run" / "trajectories" / "rl-000002.jsonl.gz")
    own = np.concatenate(credit_as_trained(target, groups))
    np.testing.assert_allclose(own, [turn["credit"] for record in recorded for turn in record["turns"]], atol=2e-4)
    for flags, reason in (
        (["--rollouts", "0"], "--rollouts 0 must be at least 1"),
        (["--discount", "0"], "--discount 0.0 must be above 0"),
        (["--geometry", "last"], "must be LAYER:POOLING"),
        (["--methods", "rlo"], "rlo"),
    ):
        assert main([*words, *flags]) == 2
        assert reason in capsys.readouterr().err


def test_credit_table_shows_outcomes_and_thirds_with_intervals(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rng = np.random.default_rng(0)
    measured = []
    for task in range(6):
        truth_N, credit_N = rng.normal(size=(2, 9))
        credits = {"GRPO": credit_N, "mine": truth_N + credit_N}
        ending, truth_N = ("mixed", truth_N) if task < 4 else ("all lost", np.zeros(9))
        group = GroupCredit(f"{task}", ending, np.arange(9) // 3, credits, {"p": np.zeros(9, int)})
        measured.append(MeasuredGroup(group, np.array([truth_N, truth_N]), np.zeros((2, 9))))
    found = quality(measured)
    show_credit(make_console(), found, {}, {})
    output = capsys.readouterr().out
    for on in ("mixed: 36 steps", "first third: 18 steps", "second third: 18 steps", "last third: 18 steps"):
        (line,) = re.findall(r"^mine +.*$", output.split(f"credit against Q − V, {on}")[1].split("\n\n")[0], re.MULTILINE)
        (agreement,) = [a for a in found.agreements if (a.estimator, a.on) == ("mine", on.partition(":")[0])]
        for figure in (agreement.correlation, agreement.gain, agreement.cosine):
            assert f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]" in line
    assert (
        "No result for all lost (18 steps): the credit is constant, or the true advantages do not exceed their noise." in output
        and "all won" not in output
    )


@pytest.mark.slow
def test_adaptive_radius_is_read_from_the_checkpoint(trained, tmp_path, capsys, monkeypatch):
    """With `--adaptive` the radius is in the checkpoint, and the row `as trained` is present."""
    monkeypatch.setenv("TACIT_CACHE", str(trained / "cache"))
    run = tmp_path / "run"
    assert main(["train", "--config", str(trained / "small.toml"), "--sft.steps", "0", "--adaptive", "--out", str(run)]) == 0
    found = [line["radius"] for line in lines(run / "metrics.jsonl") if line["stage"] == "rl"]
    assert len(found) == 2 and len(set(found)) == 1
    for checkpoint, iteration in (("untrained", 1), ("rl-000001", 2)):
        target = open_target(str(run), {}, checkpoint)
        own = np.concatenate(credit_as_trained(target, rollout_setup(target).collect(iteration)))
        recorded = read_records(run / "trajectories" / f"rl-{iteration:06d}.jsonl.gz")
        np.testing.assert_allclose(own, [turn["credit"] for record in recorded for turn in record["turns"]], atol=2e-4)
    few = rollout_setup(target, groups=1).collect(1)
    other = search_radius(ActorHidden(target.recipe.settings.layer, "last")(few, target.policy))[0]
    assert other != found[0], "one group alone would have another"
    settings = replace(target.recipe.settings, adaptive=False, epsilon=found[0])
    with_own = replace(target, recipe=replace(target.recipe, settings=settings))
    np.testing.assert_allclose(np.concatenate(credit_as_trained(target, few)), np.concatenate(credit_as_trained(with_own, few)))
    out = tmp_path / "credit.json"
    words = ["inspect", "credit", str(run), "--groups", "1", "--rollouts", "2", "--methods", "reuserl", "--json", str(out)]
    assert main(words) == 0
    output, result = " ".join(capsys.readouterr().out.split()), json.loads(out.read_text())
    assert "as trained: bipace" in {a["estimator"] for a in result["agreements"]}
    assert "reuserl, as published: its dictionary depends on earlier iterations" in output
    assert list(result["left_out"]) == ["reuserl, as published"]


def benchmark(trained, *words: str, name: str = "credit_quality") -> Forked:
    """Run as a script in a subprocess: it starts processes that import the file again."""
    return run_script(ROOT / "benchmarks" / f"{name}.py", *words, TACIT_CACHE=str(trained / "cache"))


@pytest.mark.slow
def test_benchmark_resumes_and_recomputes_only_missing_groups(trained):
    run, out = str(trained / "run"), trained / "quality.json"
    words = [run, "--checkpoints", "start,middle", "--groups", "2", "--rollouts", "2", "--json", str(out), "--geometry=-1:last"]
    done = benchmark(trained, *words, "--jobs", "2")
    assert done.code == 0, done.err
    assert "credit against Q − V" in done.out
    results = json.loads(out.read_text())["results"]
    assert list(results) == [f"{run} start (sft-000030)", f"{run} middle (rl-000001)"]
    assert all(found["groups"] == 2 and found["continuations"] > 0 for found in results.values())
    parts = sorted((trained / "quality.json.parts").iterdir())
    assert len(parts) == 2 * (1 + 2)
    lost = next(file for file in parts if "rl-000001" in file.name and "group-001" in file.name)
    before, times = lost.read_text(), {file: file.stat().st_mtime_ns for file in parts if file != lost}
    lost.unlink()
    done = benchmark(trained, *words, "--jobs", "1")
    assert done.code == 0 and "0 to evaluate" in done.out and "1 to evaluate" in done.out
    assert {file: file.stat().st_mtime_ns for file in times} == times, "what was there was not made again"
    assert lost.read_text() == before, "and what was not is the same again"
    assert json.loads(out.read_text())["results"] == results
    done = benchmark(trained, f"{out}.parts", name="credit_controls")  # compares its own PACE with the stored one
    assert done.code == 0 and "PACE-Q, one part | " in done.out and "\nrefused | " in done.out, done.err
    words = ("--tokenizer", str(next((trained / "run").rglob("tokenizer.json"))))
    done = benchmark(trained, f"{out}.parts", *words, name="credit_controls")
    assert all(f"\nPACE-{form} by first tokens, " in done.out for form in ("Q", "diff")), done.err
    done = benchmark(trained, str(trained), name="credit_controls")
    assert done.code == 2 and "has no measurements" in done.err
    done = benchmark(trained, run, "--checkpoints", "rl-000009", "--json", str(out))
    assert done.code == 2 and "no checkpoint 'rl-000009'" in done.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--layer", "-9"], "layer = -9 does not exist in 'tiny', which has 4"),
        (["--model", "tiny-base", "--layer", "7"], "layer = 7 does not exist in 'tiny-base', which has 4"),
        (["--epsilon", "2.5"], "must be between 0 and 2"),
        (["--epsilon", "0.1", "--adaptive"], "exclude each other"),
        (["--key-tokens", "0"], "must be at least 1"),
        (["--step-weight", "-1"], "must not be negative"),
        (["--embedder", "color"], "embedder"),
    ],
)
def test_bad_geometry_is_refused_before_loading(words, reason, capsys, tmp_path):
    command = ["train", "--world", "countdown", "--method", "bipace", "--out", str(tmp_path / "run"), *words]
    assert main(command) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tiny"], "--world"),
        (["tiny", "--world", "countdown", "--poolings", "sum"], "--poolings must be one of last, mean, attention"),
        (["tiny", "--world", "countdown", "--epsilons", "0.1,x"], "--epsilons must be a finite number"),
        (["tiny", "--world", "countdown", "--layers=-9"], "layer -9 does not exist"),
        (["tiny", "--world", "countdown", "--epsilons", "3"], "between 0"),
        (["tiny", "--world", "countdown", "--members", "-1"], "--members -1 must not be negative"),
        (["tiny", "--world", "countdown", "--tasks-each", "1"], "--tasks-each 1 must be at least 2: the probe is trained on"),
        (["tiny", "--world", "countdown", "--group-size", "1"], "nothing to compare"),
        (["tiny", "--world", "countdown", "--play", "oracle"], "unknown audit agent"),
        (["expert", "--world", "countdown"], "no hidden states"),
    ],
)
def test_calibrate_refuses_bad_arguments(words, reason, capsys):
    assert main(["calibrate", *words]) == 2
    assert reason in capsys.readouterr().err
