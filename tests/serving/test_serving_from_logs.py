"""Serving a module for work without a simulator: trained from logs with a drafted tracker."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import drafts
import pytest
from household_logs import household, write_lines
from served import served
from small_modules import change_manifest

from tacit.cli.main import main
from tacit.modules.drafting.packaged import read_packaged_draft
from tacit.modules.drafting.tracker import DraftedTracker


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    place = tmp_path_factory.mktemp("taught")
    (place / "bowls_tracker.py").write_text(drafts.GOOD)
    work = place / "bowls_work.py"
    work.write_text('from tacit.modules.work import work_of\n\nENVIRONMENT = work_of("bowls_tracker.py", beside=__file__)\n')
    logs = write_lines(place / "logs.jsonl", household(4, ["pick"]))
    flags = [
        "--method",
        "constant_context",
        "--model",
        "tiny-base",
        "--sft.steps",
        "3",
        "--sft.batch",
        "8",
        "--engine.device",
        "cpu",
    ]
    command = ["modules", "train", "--from", str(logs), "--world", f"{work}:ENVIRONMENT", "--out", str(place / "modules")]
    assert main([*command, *flags]) == 0
    return place / "modules"


def test_module_is_served_with_the_drafted_state_block(taught) -> None:
    with served(taught, "--yes") as server:
        path = server.begin("put a bowl in desk.", "pick")
        turn = server.post(f"{path}/observe", {"observation": "You are in a room. You see a desk 1, and a shelf 1."})
        assert turn["state"].startswith("target_object: bowl\ndestination: desk\nholding: nothing") and turn["action"]
        turn = server.post(f"{path}/observe", {"observation": "You arrive at shelf 1. On the shelf 1, you see a bowl 1."})
        assert turn["turn"] == 2 and "target_object: bowl" in turn["state"]


def test_unapproved_draft_is_shown_and_not_run(taught, tmp_path, capsys) -> None:
    assert main(["serve", str(taught), "--port", "0"]) == 2
    output = capsys.readouterr()
    assert "contains a draft that was not approved to run" in output.err and "--yes" in output.err
    assert all(line in output.err for line in drafts.GOOD.splitlines()), "the whole of it was shown"
    with served(taught, "--yes") as server:
        assert all(line in server.complaints for line in drafts.GOOD.splitlines())


@pytest.mark.slow
def test_hanging_draft_breaks_only_its_own_session(taught, tmp_path) -> None:
    endless = drafts.GOOD.replace("    went = re.match", "    while 'shelf' in observation: pass\n    went = re.match")
    with served(with_draft(taught, tmp_path / "modules", endless), "--yes") as server, ThreadPoolExecutor(1) as pool:
        path = server.begin("put a bowl in desk.", "pick")
        server.post(f"{path}/observe", {"observation": "You are in a room. You see a desk 1."})
        other = server.begin("put a bowl in desk.", "pick")
        hung = pool.submit(server.refusal, f"{path}/observe", {"observation": "You arrive at shelf 1."})
        time.sleep(0.3)
        began = time.monotonic()
        assert server.get(path)["open"] and server.get("/health")["status"] == "ok"
        assert time.monotonic() - began < 1.5, "the draft has two seconds, and nobody else waits for it"
        status, message = hung.result()
        assert status == 422 and "no answer within 2 s" in message
        assert server.get(path)["outcome"] == "broken"
        assert server.post(f"{other}/observe", {"observation": "You are in a room. You see a desk 1."})["turn"] == 1


def with_draft(taught: Path, place: Path, text: str) -> Path:
    """A copy of the module with another draft, with a consistent manifest."""
    shutil.copytree(taught, place)
    manifest = next(place.glob("*/module.json"))
    data = json.loads(manifest.read_text())
    draft = replace(read_packaged_draft(manifest.parent, data["draft"]), text=text)
    data |= {"world": draft.world_name, "tracker": DraftedTracker(draft).version}
    for name, written in draft.files.items():
        (manifest.parent / name).write_text(written)
        data["files"][name] = hashlib.sha256(written.encode()).hexdigest()
    change_manifest(manifest.parent, **data)
    return place


@pytest.mark.parametrize("command", [["eval"], ["play", "--policy"]])
def test_eval_and_play_are_refused_without_a_world(taught, command, capsys) -> None:
    assert main([*command, str(taught)]) == 2
    assert "work known from logs alone: it has no simulator, so it cannot be evaluated" in capsys.readouterr().err
