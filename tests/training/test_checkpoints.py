"""Checkpoints: retention, lookup by name, and errors for damaged ones."""

from __future__ import annotations

import pytest
from scripted import ScriptedPolicy

from tacit.core.errors import TacitError
from tacit.runs.directory import Checkpoints, open_checkpoints

STAGES = ("sft", "rl")


@pytest.fixture
def policy():
    return ScriptedPolicy(lambda *_: "")


def save(checkpoints, policy, stage, *steps):
    for step in steps:
        policy.weights = f"{stage} {step}"
        saved = checkpoints.save(stage, step, policy, {"stage": stage, "step": step})
    return saved


def names(checkpoints):
    return [c.path.name for c in checkpoints.all()]


def test_saved_checkpoint_is_read_back(tmp_path, policy):
    checkpoints = Checkpoints(tmp_path, STAGES, keep=2)
    assert checkpoints.newest() is None and checkpoints.all() == []
    save(checkpoints, policy, "sft", 10)
    policy.weights = "lost"
    newest = checkpoints.newest()
    policy.load(newest.path / "policy")
    assert (newest.stage, newest.step, newest.path.name) == ("sft", 10, "sft-000010")
    assert newest.state() == {"stage": "sft", "step": 10} and policy.weights == "sft 10"


def test_stages_sort_in_run_order(tmp_path, policy):
    checkpoints = Checkpoints(tmp_path, STAGES, keep=9)
    save(checkpoints, policy, "rl", 1)
    save(checkpoints, policy, "sft", 9, 1_000_000)
    assert names(checkpoints) == ["sft-000009", "sft-1000000", "rl-000001"]


@pytest.mark.parametrize(("keep", "kept"), [(1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5]), (0, [5])])
def test_newest_and_last_of_each_stage_are_kept(tmp_path, policy, keep, kept):
    checkpoints = Checkpoints(tmp_path, STAGES, keep)
    save(checkpoints, policy, "sft", 100)
    save(checkpoints, policy, "rl", 1, 2, 3, 4, 5)
    assert names(checkpoints) == ["sft-000100", *(f"rl-{n:06d}" for n in kept)]


def save_measured(checkpoints, policy, *measured):
    """Save (stage, step, success) in run order. Each state holds all evaluations so far, as in a run."""
    evaluations = []
    for stage, step, success in measured:
        evaluations.append({"stage": stage, "step": step, "success": success})
        checkpoints.save(stage, step, policy, {"stage": stage, "step": step, "evaluations": list(evaluations)})


def test_best_checkpoint_is_kept_until_a_better_one(tmp_path, policy):
    checkpoints = Checkpoints(tmp_path, STAGES, keep=1)
    measured = [("rl", 1, 0.5), ("rl", 2, 0.4), ("rl", 3, 0.3)]
    save_measured(checkpoints, policy, *measured)
    assert names(checkpoints) == ["rl-000001", "rl-000003"] and checkpoints.find("best").step == 1
    save_measured(checkpoints, policy, *measured, ("rl", 4, 0.5))
    assert names(checkpoints) == ["rl-000004"], "with equal success, the latest is the best"


def test_best_checkpoint_may_be_from_imitation(tmp_path, policy):
    checkpoints = Checkpoints(tmp_path, STAGES, keep=1)
    save_measured(checkpoints, policy, ("sft", 40, 0.4), ("sft", 80, 0.352), ("rl", 10, 0.18), ("rl", 20, 0.1))
    assert names(checkpoints) == ["sft-000040", "sft-000080", "rl-000020"]
    best = checkpoints.find("best")
    assert (best.stage, best.step) == ("sft", 40) and str(best) == "sft-000040, from imitation"


def test_find_checkpoint_by_name(tmp_path, policy):
    checkpoints = Checkpoints(tmp_path, STAGES, keep=9)
    save(checkpoints, policy, "sft", 1, 2)
    save(checkpoints, policy, "rl", 3, 4)
    found = {name: checkpoints.find(name).path.name for name in ("newest", "best", "sft", "rl", "rl-000003")}
    assert found == {
        "newest": "rl-000004",
        "best": "rl-000004",
        "sft": "sft-000002",
        "rl": "rl-000004",
        "rl-000003": "rl-000003",
    }
    with pytest.raises(TacitError, match=r"empty has no checkpoint yet. Continue it with `tacit train --resume .*empty`"):
        open_checkpoints(tmp_path / "empty").find("newest")
    with pytest.raises(TacitError, match=r"no checkpoint 'rl-000009'.*rl-000003"):
        checkpoints.find("rl-000009")


@pytest.mark.parametrize("name", ["best", "newest", "rl"])
def test_find_without_checkpoints_is_refused(tmp_path, name):
    with pytest.raises(TacitError, match="no checkpoint"):
        Checkpoints(tmp_path, STAGES, keep=1).find(name)


@pytest.mark.parametrize("damage", [b'{"stage": "rl", "st', b"", b"\xff\xfe\x00nonsense", None])
def test_damaged_checkpoint_names_the_file_and_the_remedy(tmp_path, policy, damage):
    checkpoint = save(Checkpoints(tmp_path, STAGES, keep=2), policy, "rl", 1)
    file = checkpoint.path / "state.json"
    file.unlink() if damage is None else file.write_bytes(damage)
    with pytest.raises(TacitError, match=r"cannot read the checkpoint .*state\.json.*Delete .*rl-000001 to resume"):
        checkpoint.state()


def test_failed_save_keeps_the_previous_checkpoint(tmp_path, policy):
    class Failing(ScriptedPolicy):
        def save(self, directory, optimizer=True):
            directory.mkdir()
            raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(tmp_path, STAGES, keep=1)
    save(checkpoints, policy, "rl", 1)
    with pytest.raises(TacitError, match="the disk is full"):
        checkpoints.save("rl", 2, Failing(lambda *_: ""), {})
    assert [p.name for p in tmp_path.iterdir()] == ["rl-000001"]
    assert checkpoints.newest().state()["step"] == 1


def test_leftovers_of_a_killed_write_are_removed(tmp_path, policy):
    (tmp_path / ".rl-000002.123.tmp" / "policy").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "rl-final").mkdir()
    checkpoints = Checkpoints(tmp_path, STAGES, keep=1)
    assert checkpoints.all() == [] and (tmp_path / ".rl-000002.123.tmp").exists()  # listing does not delete
    checkpoints.clear_leftovers()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "rl-final"]
