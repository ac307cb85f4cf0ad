"""A module of work that nobody simulates: taught from logs with a drafted tracker, and played by whoever does the work."""

from __future__ import annotations

import drafts
import pytest
from household_logs import household, write_lines
from served import served

from tacit.cli.main import main


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


def test_it_is_served_with_the_drafts_block(taught) -> None:
    with served(taught) as server:
        path = server.begin("put a bowl in desk.", "pick")
        turn = server.post(f"{path}/observe", {"observation": "You are in a room. You see a desk 1, and a shelf 1."})
        assert turn["state"].startswith("target_object: bowl\ndestination: desk\nholding: nothing") and turn["action"]
        turn = server.post(f"{path}/observe", {"observation": "You arrive at shelf 1. On the shelf 1, you see a bowl 1."})
        assert turn["turn"] == 2 and "target_object: bowl" in turn["state"]


@pytest.mark.parametrize("command", [["eval"], ["play", "--policy"]])
def test_where_there_is_no_world_nothing_is_measured_or_played(taught, command, capsys) -> None:
    assert main([*command, str(taught)]) == 2
    assert "work known from logs alone: nothing can be played or measured in it" in capsys.readouterr().err
