"""Atomic writes: after any failure a file is either complete or unchanged."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
from scripted import make_group

from tacit.core.credit import Credit, Rewards
from tacit.core.errors import TacitError
from tacit.runs import files
from tacit.runs.files import write_directory, write_json, write_text
from tacit.runs.trajectories import group_records, read_records, write_records


def contents(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_text_and_json_replace_previous_content(tmp_path):
    write_text(tmp_path / "a", "one")
    write_text(tmp_path / "a", "twø\n")
    write_json(tmp_path / "b.json", {"x": [1, "ü"]})
    assert contents(tmp_path) == {"a": "twø\n", "b.json": '{\n  "x": [\n    1,\n    "ü"\n  ]\n}\n'}


def test_directory_is_replaced_atomically(tmp_path):
    seen = []

    def fill(folder):
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("new")
        seen.append(contents(tmp_path / "d") if (tmp_path / "d").exists() else None)

    write_directory(tmp_path / "d", fill)
    (tmp_path / "d" / "stale").write_text("old")
    write_directory(tmp_path / "d", fill)
    assert contents(tmp_path) == {"d/deep/file": "new"}, "files missing from the new directory are removed"
    assert seen == [None, {"deep/file": "new", "stale": "old"}], "the old directory exists until the new one is complete"


@pytest.mark.parametrize("error", [RuntimeError("broke"), OSError(errno.ENOSPC, "No space left on device")])
def test_failed_fill_leaves_the_previous_directory(tmp_path, error):
    write_directory(tmp_path / "d", lambda folder: (folder / "file").write_text("old"))

    def fill(folder):
        (folder / "file").write_text("half")
        raise error

    with pytest.raises((RuntimeError, TacitError)) as caught:
        write_directory(tmp_path / "d", fill)
    assert contents(tmp_path) == {"d/file": "old"} and os.listdir(tmp_path) == ["d"]
    if isinstance(error, OSError):
        assert "the disk is full" in str(caught.value) and str(tmp_path / "d") in str(caught.value)


def test_failed_move_leaves_the_previous_directory(tmp_path, monkeypatch):
    write_directory(tmp_path / "d", lambda folder: (folder / "file").write_text("old"))
    move = os.replace

    def fail_into_place(source, target):
        if str(source).endswith(".tmp") and "old" not in str(source):
            full_disk()
        move(source, target)

    monkeypatch.setattr(files.os, "replace", fail_into_place)
    with pytest.raises(TacitError, match="the disk is full"):
        write_directory(tmp_path / "d", lambda folder: (folder / "file").write_text("new"))
    assert contents(tmp_path) == {"d/file": "old"} and os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_leaves_the_previous_file_and_is_reported(tmp_path, monkeypatch, call):
    write_text(tmp_path / "a", "old")
    monkeypatch.setattr(files.os, call, full_disk)
    with pytest.raises(
        TacitError, match=r"cannot write .*a: the disk is full\. Earlier files are intact; free space, then continue\.$"
    ):
        write_text(tmp_path / "a", "new")
    assert contents(tmp_path) == {"a": "old"}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EDQUOT, "quota is used up.* free space"),
        (errno.EROFS, "read-only disk.* make it writable"),
        (errno.EACCES, f"{os.strerror(errno.EACCES)}.* make it writable"),
        (errno.EIO, f"{os.strerror(errno.EIO)}.* fix this"),
    ],
)
def test_other_disk_errors_name_the_remedy(tmp_path, monkeypatch, number, words):
    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(TacitError, match=words):
        write_text(tmp_path / "a", "new")


def test_trajectory_records_round_trip(tmp_path):
    group = make_group([[2, 1], [1]], success=[True, False], valid=[[True, False], [True]])
    rewards = Rewards.at_the_end(group, [10.0, 0.0]) + Rewards.local(group, [0.0, -0.1, 0.0])
    credit = Credit(group, np.array([1.0, 2.0, 3.0, -1.0]))
    records = group_records(group, rewards, credit)
    path = tmp_path / "trajectories" / "rl-000001.jsonl.gz"
    write_records(path, records)
    assert read_records(path) == records
    won, lost = records
    assert won["success"] and won["stop"] == "success" and lost["stop"] == "step_limit" and lost["task"] == "toy/0"
    assert [turn["reward"] for turn in won["turns"]] == [0.0, 9.9]
    assert [turn["credit"] for turn in won["turns"]] == [1.5, 3.0]
    assert [turn["valid"] for turn in won["turns"]] == [True, False]
    assert won["turns"][0] == {
        "saw": "here",
        "wrote": "words",
        "action": "act",
        "valid": True,
        "effective": True,
        "prompt_tokens": 1,
        "tokens": 2,
        "logprob": -2.0,
        "reward": 0.0,
        "credit": 1.5,
    }
    assert "reward" not in group_records(group)[0]["turns"][0]


def test_equal_records_give_equal_bytes(tmp_path):
    records = group_records(make_group([[1]]))
    write_records(tmp_path / "a", records)
    write_records(tmp_path / "b", records)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_failed_record_write_leaves_the_previous_file(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    write_records(path, [{"n": 1}])

    def half():
        yield {"n": 2}
        full_disk()

    with pytest.raises(TacitError, match="the disk is full"):
        write_records(path, half())
    assert read_records(path) == [{"n": 1}] and os.listdir(tmp_path) == [path.name]


def test_unserializable_value_does_not_replace_a_file(tmp_path):
    write_json(tmp_path / "a", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "a", object())
    assert json.loads((tmp_path / "a").read_text()) == 1


@pytest.mark.parametrize(
    "cause",
    [OSError(errno.ENOSPC, "No space left on device"), Exception("Error while serializing: I/O error: … (os error 28)")],
    ids=["python's", "another library's"],
)
def test_full_disk_is_detected_behind_an_engines_error(tmp_path, cause):
    """Engines wrap disk errors in their own. Only disk errors name a command to resume."""

    def fill(path):
        raise TacitError("cannot write the checkpoint") from cause

    with pytest.raises(files.DiskError, match=r"the disk is full.*free space, then continue") as refused:
        write_directory(tmp_path / "policy", fill)
    assert "with `tacit train --resume RUN`" in str(refused.value.naming("tacit train --resume RUN"))

    def other(path):
        raise TacitError("not finite") from ValueError("weights")

    with pytest.raises(TacitError, match="not finite") as kept:
        write_directory(tmp_path / "policy", other)
    assert not isinstance(kept.value, files.DiskError)
