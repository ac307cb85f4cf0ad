"""Runs from Python: same results as the command line, objects instead of names, and callbacks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from forked import run_script, start_script
from guessing import NEXT, SAME, Say

import tacit
from tacit.api import name_method, name_worlds
from tacit.cli.main import main
from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.method import RewardTerm, adds
from tacit.core.registry import IN_MEMORY
from tacit.methods.grpo import GRPO
from tacit.runs.directory import read_metrics
from tacit.worlds import get_environment

TESTS = Path(__file__).resolve().parents[1]
SMALL = {
    "iterations": 4,
    "groups": 2,
    "group_size": 2,
    "lr": 1e-3,
    "kl": 0.0,
    "tasks": 20,
    "checkpoint_every": 1,
    "sft": {"steps": 3, "tasks": 8, "batch": 4},
    "tiny": {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 2},
    "engine": {"threads": 1},
    "evaluation": {"tasks": 4, "every": 2},
}
FLAGS = [
    *("--iterations", "4", "--groups", "2", "--group-size", "2", "--lr", "1e-3", "--kl", "0", "--tasks", "20"),
    *("--checkpoint-every", "1", "--sft.steps", "3", "--sft.tasks", "8", "--sft.batch", "4", "--engine.threads", "1"),
    *("--tiny.hidden", "32", "--tiny.layers", "2", "--tiny.heads", "2", "--tiny.kv-heads", "2"),
    *("--evaluation.tasks", "4", "--evaluation.every", "2"),
]


@dataclass(frozen=True)
class Bonus(RewardTerm):
    worth: float

    def __call__(self, groups, info):
        return [Rewards.at_the_end(group, [self.worth] * len(group)) for group in groups]


@dataclass(frozen=True)
class Generous(GRPO):
    """GRPO plus a bonus for every episode."""

    name: ClassVar[str] = "generous"

    worth: float = 1.0
    """bonus per episode"""

    def changes(self, world, resources):
        return (adds("rewards", "bonus", Bonus(self.worth)),)


class Always:
    def __init__(self, task):
        pass

    def act(self, observation):
        return 3


def small(out: Path, world=SAME, method=None, **more) -> tacit.OpenRun:
    return tacit.train(world, method, "tiny-0.5m", out=out, quiet=True, **{**SMALL, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tacit.OpenRun:
    return small(tmp_path_factory.mktemp("runs") / "whole")


def test_import_loads_no_heavy_modules():
    code = (
        "import sys, tacit; print([n for n in ('torch', 'numpy', 'transformers', 'pandas') if n in sys.modules]); tacit.train"
    )
    code += "; tacit.evaluate; tacit.open_run; assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        tacit.trian  # noqa: B018


def test_str_of_a_run_is_its_result_in_one_line(run, tmp_path):
    text = str(run)
    assert text.startswith(f"{run.path}: success {run.success:.1%} [") and "of 4 episodes after rl 4 on same/test/4" in text
    assert "; before: untrained " in text and ", after sft 3 " in text and "\n" not in text
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "settings.json").write_text('{"method": {"name": "grpo"}}')
    assert str(tacit.open_run(unfinished)) == f"{unfinished}: not finished"


def test_run_equals_the_command_lines_run(run, tmp_path):
    words = [
        "train",
        "--world",
        f"{TESTS / 'guessing.py'}:SAME",
        "--model",
        "tiny-0.5m",
        "--out",
        str(tmp_path / "run"),
        *FLAGS,
    ]
    assert main(words) == 0
    other = tacit.open_run(tmp_path / "run")
    assert {**other.settings, "out": ""} == {**run.settings, "out": ""}
    assert other.summary["digest"] == run.summary["digest"] and other.success == run.success


def test_numpy_and_torch_numbers_are_accepted_as_settings(tmp_path):
    import torch

    values = {
        "iterations": np.int64(0),
        "lr": np.float32(1e-4),
        "kl": torch.tensor(0.0),
        "admissible": np.bool_(False),
        "sft": {"steps": np.array(2), "lr": np.float64(3e-3)},
        "seed": np.uint8(7),
    }
    method = replace(GRPO(), entropy=np.float32(0.1), clip_high=np.float16(0.3), clip_low=np.float32(0.1234567))
    done = small(tmp_path / "run", SAME, method, **values)
    settings = done.settings
    assert settings["schedule"]["lr"] == 1e-4 and settings["method"]["kl"] == 0.0 and settings["method"]["entropy"] == 0.1
    assert settings["method"]["clip_high"] == 0.3 and settings["method"]["clip_low"] == 0.1234567
    assert settings["prompt"]["admissible"] is False and settings["seed"] == 7 and settings["sft"]["lr"] == 3e-3
    assert len(done.metrics("sft", rows=True)) == 2
    assert done.evaluate(tasks=np.int32(3), temperature=np.float32(0.5)).score.episodes == 3
    assert name_worlds([("countdown", np.float64(0.75)), ("sokoban", np.float32(0.25))]) == "countdown=0.75,sokoban=0.25"


def test_recorded_metrics_turns_and_trajectories_can_be_read(run):
    assert run.finished and run.checkpoints[-1] == "rl-000004" and "finished" in repr(run)
    assert [r["step"] for r in run.metrics("sft", rows=True)] == [1, 2, 3] and len(run.metrics(rows=True)) == 7
    turns, played = run.turns(rows=True), run.trajectories()
    assert len(turns) == len(played) == 4 * 4 and {t.task.world for t in played} == {"same"}
    assert [t["action"] for t in turns] == [t.steps[0].action for t in played]
    assert {"saw", "wrote", "valid", "effective", "reward", "credit", "turn", "success"} <= turns[0].keys()
    assert len(run.turns("eval-rl", step=2, rows=True)) == 4 and len(run.episodes("eval-untrained", rows=True)) == 4
    assert len(run.policy("sft").encode_prompt("say a")) > 0
    with pytest.raises(TacitError, match=r"no recorded episodes of rl 9; there are 1, 2, 3, 4"):
        run.turns(step=9)
    with pytest.raises(TacitError, match=r"unknown stage 'eval'.*Known: eval-rl, eval-sft, eval-untrained, rl"):
        run.turns("eval")


def test_tables_are_pandas(run):
    pandas = pytest.importorskip("pandas")
    turns = run.turns()
    assert isinstance(turns, pandas.DataFrame) and len(turns) == 16 and turns["valid"].dtype == bool
    assert list(run.metrics("rl")["step"]) == [1, 2, 3, 4] and len(run.episodes()) == 16


def test_missing_pandas_names_the_remedy(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TacitError, match=r"pip install 'tacit-agents\[tables\]'.*rows=True"):
        run.metrics()


def test_evaluate_reproduces_the_runs_result(run):
    again = run.evaluate()
    assert again.success == run.success and again.result["equals_run"] and again.kept.is_file()
    assert len(again.trajectories) == len(again.turns(rows=True)) == len(again.episodes(rows=True)) == 4
    assert run.evaluate(checkpoint="sft", tasks=3).score.episodes == 3


def test_loaded_policy_is_evaluated_with_its_current_weights(run, tmp_path, monkeypatch):
    """With unchanged weights the result equals the run's. With other weights the fingerprint differs and nothing is reused."""
    monkeypatch.chdir(tmp_path)
    policy, again = run.policy(), tacit.evaluate(run, out=tmp_path / "run")
    measured = tacit.evaluate(policy, like=run, out=tmp_path / "policy")
    alike = ("successes", "episodes", "panel_hash", "fingerprint", "reads", "temperature")
    assert [measured.result.get(name) for name in alike] == [again.result.get(name) for name in alike]
    assert [[s.action for s in t.steps] for t in measured.trajectories] == [
        [s.action for s in t.steps] for t in again.trajectories
    ]
    named = tacit.evaluate(policy, SAME, GRPO(), tasks=4, out=tmp_path / "policy")
    assert named.score.episodes == 4 and named.result["target"] == "a policy"
    policy.load(run.path / "checkpoints" / run.checkpoints[0] / "policy")
    changed = tacit.evaluate(policy, like=run, out=tmp_path / "policy")
    assert changed.result["fingerprint"] != measured.result["fingerprint"]
    with pytest.raises(TacitError, match="'a policy' needs a world"):
        tacit.evaluate(policy)
    with pytest.raises(TacitError, match="has its weights already"):
        tacit.evaluate(policy, like=run, checkpoint="best")
    with pytest.raises(TacitError, match=r"is an instance; pass the class Always, which is created for each task"):
        tacit.evaluate(Always(None), SAME)
    with pytest.raises(TacitError, match=r"returned 'a' for a task, which cannot play: .* `act\(observation\)`"):
        tacit.evaluate(lambda task: "a", SAME, tasks=2)
    with pytest.raises(TacitError, match="must return the action as text, but returned an int for the observation"):
        tacit.evaluate(Always, SAME, tasks=2)
    with pytest.raises(TacitError, match="only a loaded policy"):
        tacit.evaluate("expert", SAME, like=run)


def test_experts_and_custom_agents_are_evaluated(tmp_path):
    assert tacit.evaluate("expert", SAME, tasks=4).success == 1.0

    class Same:
        def __init__(self, task):
            pass

        def act(self, observation):
            return observation.text.removeprefix("say ")

    assert tacit.evaluate(Same, SAME, tasks=4, out=tmp_path).success == 1.0
    assert tacit.evaluate(Same, NEXT, tasks=4, out=tmp_path).success == 0.0


def test_another_expert_of_the_world_is_evaluated_by_name(capsys):
    result = tacit.evaluate("expert", "errands", tasks=4).result
    other = tacit.evaluate("expert", "errands", tasks=4, sft={"expert": "stranger"}).result
    assert (result["fingerprint"], other["fingerprint"]) == ("expert of errands: resident", "expert of errands: stranger")
    assert other["success"] < result["success"] == 1.0
    with pytest.raises(TacitError, match=r"unknown expert 'strangr' of world 'errands'.*Known: resident, stranger"):
        tacit.evaluate("expert", "errands", sft={"expert": "strangr"})
    words = ("--world", "errands", "--sft.expert", "stranger")
    assert main(["eval", "expert", "--tasks", "4", *words]) == main(["play", "--policy", "expert", *words]) == 0
    assert "of        expert of errands: stranger" in capsys.readouterr().out


def test_reader_of_a_world_without_experts_is_evaluated():
    world = replace(get_environment("alfworld"), experts={})
    assert tacit.evaluate("reader", world, tasks=2).success == 1.0


def test_callback_stops_the_run_and_resume_equals_uninterrupted_run(run, tmp_path):
    seen = []

    def stop_after_one(event: tacit.Event):
        seen.append((event.kind, event.stage, event.step, event.total))
        assert event.run == tmp_path / "run" and event.metrics
        return event.kind == "step" and event.stage == "rl" and event.step == 1

    stopped = small(tmp_path / "run", callbacks=stop_after_one)
    assert not stopped.finished and stopped.summary["stopped"] == "callback" and stopped.checkpoints[-1] == "rl-000001"
    assert seen == [
        ("evaluation", "untrained", 0, 0),
        *(("step", "sft", step, 3) for step in (1, 2, 3)),
        ("evaluation", "sft", 3, 3),
        ("step", "rl", 1, 4),
        ("evaluation", "rl", 1, 4),
    ]
    stopped.resume(quiet=True, callbacks=[lambda event: None])
    assert stopped.finished and stopped.summary["digest"] == run.summary["digest"]


def test_callback_stops_imitation(tmp_path):
    stopped = small(tmp_path / "run", callbacks=lambda event: event.stage == "sft" and event.step == 2)
    assert stopped.checkpoints == ["sft-000002"] and not stopped.finished


def test_invalid_callbacks_are_refused(tmp_path):
    with pytest.raises(TacitError, match="returned 'enough'; return True to stop the run"):
        small(tmp_path / "run", callbacks=lambda event: "enough")
    with pytest.raises(TacitError, match="callbacks = 3 must be functions"):
        small(tmp_path / "other", callbacks=[3])
    with pytest.raises(TacitError, match="callbacks = 3 must be functions"):
        small(tmp_path / "other", callbacks=3)


def test_methods_as_objects(tmp_path):
    first = small(tmp_path / "class", method=Generous, iterations=1, worth=2.5)
    assert first.settings["method"]["name"] == f"{__file__}:Generous" and first.settings["method"]["worth"] == 2.5
    second = small(tmp_path / "instance", method=Generous(worth=2.5), iterations=1)
    assert second.settings["method"] == first.settings["method"]
    assert first.metrics("rl", rows=True)[0]["reward"] >= 2.5
    both = small(tmp_path / "both", method=["rloo", Generous(worth=0.5)], iterations=1)
    assert both.settings["method"]["name"] == f"rloo+{__file__}:Generous" and both.settings["method"]["worth"] == 0.5


def test_several_worlds_as_objects(tmp_path):
    run = small(tmp_path / "run", [(SAME, 0.5), (NEXT, 0.5)], iterations=1)
    assert list(run.worlds.values()) == [SAME, NEXT]
    with pytest.raises(TacitError, match="is a task of 'same' and of 'next'"):
        run.trajectories()
    assert len(run.turns(rows=True)) == 4


@pytest.mark.slow
def test_names_resolve_to_the_same_objects(tmp_path):
    assert name_worlds(SAME) == f"{TESTS / 'guessing.py'}:SAME" and name_worlds("alfworld") == "alfworld"
    from tacit.worlds import get_environment

    assert name_worlds(get_environment("countdown")) == "countdown"
    assert name_method(GRPO) == ("grpo", {}) and name_method(GRPO(kl=0.5)) == ("grpo", {"kl": 0.5})
    hidden = replace(SAME, name="hidden")
    run = small(tmp_path / "run", hidden, iterations=1)
    assert run.settings["world"] == f"{IN_MEMORY}:hidden"
    code = f"import tacit; tacit.open_run({str(run.path)!r}).evaluate()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "tacit.open_run(PATH, world=…)" in done.stderr
    assert tacit.open_run(run.path, world=hidden).evaluate().result["equals_run"]
    with pytest.raises(TacitError, match=r"world = 3 must be a name, an Environment"):
        name_worlds(3)
    with pytest.raises(TacitError, match="is not a valid method: it must be a dataclass"):
        name_method(Path)
    with pytest.raises(TacitError, match="<class 'int'> is not a valid method"):
        name_method(3)
    with pytest.raises(TacitError, match=r"is the simulator of one episode; pass an Environment with make=Say"):
        name_worlds(Say)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kll": 0.1}, "unknown setting 'kll'.*Did you mean 'kl'"),
        ({"learning_rate": 0.1}, "unknown setting 'learning_rate'.*Did you mean 'lr'"),
        ({"output_dir": "x"}, "Did you mean 'out'"),
        ({"steps": 3}, r'Did you mean sft=\{"steps": 3\}'),
        ({"sft_steps": 3}, r'Did you mean sft=\{"steps": 3\}'),
        ({"engine_device": "cpu"}, r"""Did you mean engine=\{"device": 'cpu'\}"""),
        ({"efficiency": 1.0}, "It belongs to round_length, reuserl"),
        ({"engine": {"servers": 2}}, 'of the engine local. It belongs to sharded; set name = "sharded" there'),
        ({"sft": 3}, "sft = 3 must be a dict"),
        ({"sft": {"stepps": 3}}, r"unknown key `stepps` in \[sft\]"),
        ({"lr": "much"}, "lr must be a finite number"),
        ({"method": "grpoo"}, "unknown method 'grpoo'"),
    ],
)
def test_wrong_settings_are_refused_before_writing(tmp_path, settings, message):
    with pytest.raises(TacitError, match=message):
        small(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_settings_file_as_world_points_to_config():
    with pytest.raises(TacitError, match=r"'mine.toml' is a settings file, not a world; write train\(config='mine.toml'\)"):
        tacit.train("mine.toml")


def test_recipe_by_name_with_overrides(tmp_path, monkeypatch):
    import tacit.api as training

    recipes = []
    monkeypatch.setattr(training, "run_training", lambda prepared, *more: recipes.append(prepared.recipe))
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(training, "OpenRun", lambda path: path)
    tacit.train(config="quickstart", out=tmp_path / "run", iterations=3, sft={"steps": 5})
    (recipe,) = recipes
    assert (recipe.world, recipe.schedule.iterations, recipe.train.sft.steps) == ("alfworld", 3, 5)
    assert recipe.train.sft.tasks != 1000, "what the recipe says stays"


def test_existing_run_needs_resume(run, tmp_path):
    with pytest.raises(TacitError, match=r"already contains a run\. Resume it"):
        small(run.path)
    assert small(run.path, resume=True).summary == run.summary, "it was finished"
    with pytest.raises(TacitError, match=r"a resumed run keeps its settings: method\.kl=0\.5"):
        small(run.path, resume=True, kl=0.5)


SCRIPT = """
import sys
import tacit
from guessing import SAME
from test_from_python import SMALL

if __name__ == "__main__":
    run = tacit.train(SAME, None, "tiny-0.5m", out=sys.argv[1], resume=True, quiet=True, **SMALL)
    assert run.finished
"""


@pytest.mark.slow
def test_killed_script_resumes_when_run_again(run, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    process = start_script(tmp_path / "script.py", out)
    process.until(lambda: len(read_metrics(out / "metrics.jsonl")) >= 5)
    process.kill()
    assert not (out / "summary.json").exists(), "it was killed too late to be a test"
    run_script(tmp_path / "script.py", out).finish()
    assert json.loads((out / "summary.json").read_text())["digest"] == run.summary["digest"]
