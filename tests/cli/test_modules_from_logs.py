"""`tacit modules train --from` and `tacit modules draft-tracker`."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import drafts
import pytest
from chat_server import says, serving
from household_logs import as_messages, as_react, household, write_lines
from small_modules import train_modules, write_recipe

from tacit.cli.main import main
from tacit.modules import Agent, read_module
from tacit.modules.training import COVERAGE

TINY = [
    *("--model", "tiny-base", "--engine.device", "cpu", "--engine.threads", "1", "--engine.lora-rank", "4"),
    *("--sft.steps", "12", "--sft.batch", "8", "--sft.lr", "3e-3", "--max-tokens", "16"),
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """Expert episodes of `pick`, four of them lost."""
    return write_lines(tmp_path_factory.mktemp("logs") / "pick.jsonl", household(12, ["pick"], lost=4))


def drafted(logs: Path, out: Path, *answers: str, flags: tuple[str, ...] = ("--yes",)) -> tuple[int, list[dict[str, Any]]]:
    """Run the command against an endpoint that gives these answers in order."""
    left = list(answers)
    with serving(lambda body: (200, says(left.pop(0)))) as server:
        command = ["modules", "draft-tracker", "--from", str(logs), "--out", str(out), "--name", "pick"]
        code = main([*command, "--endpoint", server.url, "--model", "scripted", *flags])
        return code, server.requests


def test_good_draft_is_shown_checked_and_saved(logs, tmp_path, capsys) -> None:
    code, requests = drafted(logs, tmp_path, drafts.fenced(drafts.GOOD))
    out = capsys.readouterr().out
    assert code == 0 and len(requests) == 1 and requests[0]["model"] == "scripted"
    question = requests[0]["messages"][-1]["content"]
    assert "Do not count turns" in question and "put " in question and "It was lost." in question
    assert out.index('CLAIMS = {"subgoal": 2.0}') < out.index("16 episodes (12 won)"), "it is shown before it is run"
    assert (tmp_path / "pick_tracker.py").read_text().strip() == drafts.GOOD.strip()
    found = json.loads((tmp_path / "pick_tracker_checks.json").read_text())
    assert found["passed"] and set(found["checks"].values()) == {"held"}
    assert "--world" in out and "pick_work.py:ENVIRONMENT" in out


def test_huge_answer_is_truncated_and_escaped_on_the_terminal(logs, tmp_path, capsys) -> None:
    endless = "\x1b[2J\x1b[31mx = 1\n" + "# \x07and so on\n" * 200_000
    code, _ = drafted(logs, tmp_path, endless, flags=("--yes", "--attempts", "1"))
    out = capsys.readouterr().out
    assert code == 1 and "more characters, too long to run" in out and len(out) < 150_000
    assert "\x1b" not in out and "\x07" not in out and "\\x1b[2J" in out
    assert "reads: " in out and len((tmp_path / "pick_tracker.py.refused").read_text()) > 2_000_000, "nothing of it is lost"


@pytest.mark.slow
def test_repeated_draft_request_uses_the_cached_answer(logs, tmp_path, capsys) -> None:
    with serving(lambda body: (200, says(drafts.fenced(drafts.GOOD)))) as server:
        command = ["modules", "draft-tracker", "--from", str(logs), "--out", str(tmp_path), "--yes"]
        for _ in range(2):
            assert main([*command, "--endpoint", server.url, "--model", "scripted"]) == 0
        assert len(server.requests) == 1


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("draft", "check", "message"),
    [
        (drafts.ALWAYS_DONE, "done", "done: episode of line 1, turn 0: done, and it was not won yet"),
        (drafts.ASKS_THE_OUTCOME, "runs", "missing 1 required positional argument: 'success'"),
        (drafts.NEVER_ENDS, "runs", "runs: episode of line 1, turn 3: no answer within 2 s"),
        (drafts.READS_FILES, "reads", "reads: line 48: uses open"),
    ],
)
def test_bad_draft_is_refused_and_saved_as_refused(logs, tmp_path, capsys, draft, check, message) -> None:
    code, requests = drafted(logs, tmp_path, drafts.fenced(draft), flags=("--yes", "--attempts", "1"))
    out = capsys.readouterr().out
    assert code == 1 and message in out and "no draft passed" in out and len(requests) == 1
    assert not list(tmp_path.glob("*.py")) and (tmp_path / "pick_tracker.py.refused").read_text().strip() == draft.strip()
    assert "failed" in json.loads((tmp_path / "pick_tracker_checks.json").read_text())["checks"][check]


@pytest.mark.slow
def test_next_draft_request_includes_the_failure(logs, tmp_path, capsys) -> None:
    code, requests = drafted(logs, tmp_path, drafts.fenced(drafts.READS_FILES), drafts.fenced(drafts.ALWAYS_DONE), drafts.GOOD)
    assert code == 0 and len(requests) == 3
    assert "imports os" in requests[1]["messages"][-1]["content"] and "not won yet" in requests[2]["messages"][-1]["content"]


@pytest.mark.parametrize("typed", ["n\n", "\n", ""])
def test_draft_is_not_run_without_confirmation(logs, tmp_path, capsys, monkeypatch, typed) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    monkeypatch.setattr("tacit.modules.drafting.draft.check_draft", lambda *more: pytest.fail("it was run"))
    assert drafted(logs, tmp_path, drafts.fenced(drafts.GOOD), flags=())[0] == 1
    out = capsys.readouterr().out
    assert "CLAIMS" in out and "the draft was not run" in out and (tmp_path / "pick_tracker.py.refused").exists()


def test_draft_runs_after_confirmation(logs, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert drafted(logs, tmp_path, drafts.fenced(drafts.GOOD), flags=())[0] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--name", "../x"], "must be a Python identifier"),
        (["--shown", "0"], "must be at least 1"),
        (["--family", "heat"], "unknown family 'heat' of these logs. Did you mean"),
        ([], "no model: give --endpoint"),
        (["--model", "tiny-base", "--max-tokens", "64"], "more for the answer it exceeds the model's"),
        (["--check", "no.py"], "cannot read the draft no.py"),
    ],
)
def test_draft_tracker_refuses_bad_arguments(logs, tmp_path, capsys, flags, message) -> None:
    assert main(["modules", "draft-tracker", "--from", str(logs), "--out", str(tmp_path / "new"), *flags]) == 2
    assert message.split(". Did")[0] in capsys.readouterr().err and not list(tmp_path.glob("new/*.py*"))


@pytest.mark.slow
def test_hand_edited_draft_is_checked(logs, tmp_path) -> None:
    own = tmp_path / "pick_tracker.py"
    own.write_text(drafts.GOOD)
    command = ["--from", str(logs), "--out", str(tmp_path), "--yes"]
    assert main(["modules", "draft-tracker", "--check", str(own), "--name", "pick", *command]) == 0
    assert own.read_text() == drafts.GOOD and "work_of('pick_tracker.py', " in (tmp_path / "pick_work.py").read_text()


@pytest.mark.slow
def test_drafted_rewards_for_a_worlds_tracker_are_paid_in_rl(logs, tmp_path, capsys) -> None:
    common = ["--from", str(logs), "--family", "pick", "--name", "own", "--out", str(tmp_path), "--yes"]
    assert main(["modules", "draft-rewards", *common]) == 2 and "no tracker: give --world" in capsys.readouterr().err
    with serving(lambda body: (200, says(drafts.fenced(drafts.OWN_REWARDS)))) as server:
        flags = ["--world", "alfworld", "--endpoint", server.url, "--model", "scripted"]
        assert main(["modules", "draft-rewards", *common, *flags]) == 0
        question = server.requests[0]["messages"][-1]["content"]
    assert "state block:\nsubgoal: find_object" in question and 'before["came_up"]' in question
    assert "def start" not in question and "draft 1 of 3" in capsys.readouterr().out
    work, out = tmp_path / "own_work.py", tmp_path / "modules"
    assert "work_of('', beside=__file__, rewards='own_rewards.py', world='alfworld', block='full')" in work.read_text()
    chosen = ["--world", f"{work}:ENVIRONMENT", "--block", "drafted", "--skills", "pick"]
    assert (
        train_modules(write_recipe(tmp_path), out, "--from", str(logs), *chosen, "--sft.steps", "5", "--iterations", "1") == 0
    )
    assert str(read_module(out / "pick").tracker).startswith("alfworld-1+own_rewards-")
    with gzip.open(out / "runs" / "pick" / "trajectories" / "rl-000001.jsonl.gz", "rt") as lines:
        turns = [turn for line in lines for turn in json.loads(line)["turns"]]
    named = {name for turn in turns for name in turn.get("signals", {})}
    assert named <= {"progress", "error", "progress.took", "progress.placed", "error.refused"} and "error.refused" in named


@pytest.mark.slow
def test_module_trained_from_logs_without_a_world(logs, tmp_path, capsys, monkeypatch) -> None:
    """Logs, drafted tracker, imitation, module card, and an agent that acts with the module."""
    (tmp_path / "mugs").mkdir()
    assert drafted(logs, tmp_path / "mugs", drafts.fenced(drafts.GOOD), flags=("--yes", "--name", "mugs"))[0] == 0
    world, out = f"{tmp_path / 'mugs' / 'mugs_work.py'}:ENVIRONMENT", tmp_path / "modules"
    command = [
        "modules",
        "train",
        "--from",
        str(logs),
        "--world",
        world,
        "--method",
        "constant_context",
        "--out",
        str(out),
        *TINY,
    ]
    assert main([*command, "--iterations", "3"]) == 2
    assert "--sft.from FILE and --iterations 0" in capsys.readouterr().err and not out.exists()
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "nothing is measured" in output and "without RL" in output and "held-out turns" in output
    module = read_module(out / "pick")
    assert module.families == ("pick",) and not module.scores and str(module.tracker).startswith("mugs_tracker-")
    assert (module.from_logs["practised"], module.from_logs["episodes"]) == (False, 11)
    assert "never" in module.from_logs["measured"]
    assert module.from_logs["kept_turns"] > 3 and 0 <= module.from_logs["same_action"] <= 1
    agent = Agent.load(out, temperature=0.0)
    agent.begin("put a bowl in desk.", family="pick")
    action = agent.act("You are in the middle of a room. Looking quickly around you, you see a desk 1, and a shelf 1.")
    assert action and agent.prompt is not None and "target_object: bowl\ndestination: desk" in agent.prompt.text
    assert main(command) == 0 and "is finished" in capsys.readouterr().out
    assert main(["modules", "verify", str(out)]) == 0
    _passes_on_with_its_draft(out / "pick", tmp_path, capsys, monkeypatch)


def _passes_on_with_its_draft(module: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """The packed module is one file. It asks before it runs the draft and needs nothing from the original folder."""
    package, theirs = tmp_path / "mugs.tacit", tmp_path / "theirs"
    (tmp_path / "mugs").rename(tmp_path / "gone")
    assert main(["modules", "pack", str(module), str(package)]) == 0
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert main(["modules", "install", str(package), "--out", str(theirs)]) == 2 and not theirs.exists()
    output = capsys.readouterr()
    assert "def events(before, action, observation, after):" in output.out and "was not approved to run" in output.err
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["modules", "install", str(package), "--out", str(theirs)]) == 0
    card = (theirs / "pick" / "README.md").read_text()
    assert (
        "A model drafted its tracker or rewards (`mugs_tracker.py.txt`)" in card
        and str(tmp_path) not in read_module(theirs / "pick").world
    )
    assert not list(theirs.rglob("*.py")), "nothing there could be imported"
    agent = Agent.load(theirs, temperature=0.0)
    agent.begin("put a bowl in desk.", family="pick")
    assert agent.act("You are in the middle of a room. Looking quickly around you, you see a desk 1.")
    assert agent.prompt is not None and "target_object: bowl\ndestination: desk" in agent.prompt.text
    again = tmp_path / "again.tacit"
    assert main(["modules", "pack", str(theirs / "pick"), str(again)]) == 0 and again.read_bytes() == package.read_bytes()
    draft = theirs / "pick" / "mugs_tracker.py.txt"
    draft.write_text(draft.read_text().replace("BOUND = 400", "BOUND = 401"))
    assert main(["modules", "verify", str(theirs)]) != 0
    assert "is damaged" in capsys.readouterr().out


@pytest.mark.slow
def test_logs_without_world_or_tracker_use_turn_history(tmp_path, capsys) -> None:
    lines = [{**line, "family": None} for line in household(3, ["heat"])]
    logs, out = write_lines(tmp_path / "heat.jsonl", lines), tmp_path / "modules"
    assert main(["modules", "train", "--from", str(logs), "--style", "bare", "--history", "2", "--out", str(out), *TINY]) == 0
    output = capsys.readouterr().out
    assert "work" in output and "few: fewer than 12 won" in output
    module = read_module(out / "work")
    assert main(["modules", "export", str(out / "runs" / "work"), "--out", str(tmp_path / "elsewhere")]) == 2
    assert "was trained from logs alone" in capsys.readouterr().err
    assert module.world == "tacit.modules.work:WORK" and module.tracker is None and "kept_turns" not in module.from_logs


@pytest.mark.slow
def test_alfworld_modules_from_logs_then_rl(tmp_path, capsys) -> None:
    """Three log formats, lines without a family, and a reason for every unusable line."""
    lines = household(12, ["heat", "look"], lost=2)
    forms = [line if n % 3 == 0 else as_react(line) if n % 3 == 1 else as_messages(line) for n, line in enumerate(lines)]
    for line in forms[::2]:
        del line["family"]  # inferred from the goal
    logs = write_lines(tmp_path / "explorer.jsonl", [*forms, "{", {**forms[1], "family": "cook", "goal": "fry an egg."}])
    recipe = write_recipe(tmp_path)
    out = tmp_path / "modules"
    assert train_modules(recipe, out, "--from", str(logs), "--tasks", "400") == 0
    output = capsys.readouterr().out
    assert f"{logs} line 15: " in output and "line 16: unknown family 'cook'" in output
    assert "14 episodes can be used, 2 lines cannot" in output and "pick: no module, no won episode of pick, pick2" in output
    report = {each["family"]: each for each in json.loads((out / "logs" / COVERAGE).read_text())["families"]}
    assert (report["heat"]["won"] + report["look"]["won"], report["cool"]["remark"]) == (12, "none")
    assert report["heat"]["episodes"] + report["look"]["episodes"] == 14 and "few" in report["heat"]["remark"]
    module = read_module(out / "heat")
    assert {"sft", "rl"} <= set(module.scores) and module.from_logs["practised"] and module.families == ("heat",)
    assert module.from_logs["episodes"] == report["heat"]["won"] and module.from_logs["turns"] == report["heat"]["turns"]
    assert sorted(each.name for each in out.iterdir()) == ["heat", "logs", "look", "runs"]
    settings = json.loads((out / "runs" / "heat" / "settings.json").read_text())
    assert settings["sft"]["from"].endswith("logs/heat.jsonl")
    write_lines(logs, forms[:6])
    assert train_modules(recipe, out, "--from", str(logs), "--tasks", "400") == 2
    assert "the logs differ from those that" in capsys.readouterr().err


@pytest.mark.slow
def test_drafted_tracker_adds_a_state_block_form_to_a_world(logs, tmp_path, capsys) -> None:
    """Imitation and RL in ALFWorld with the drafted state block and rewards."""
    flags = ("--yes", "--name", "drafted", "--world", "alfworld")
    assert drafted(logs, tmp_path, drafts.fenced(drafts.GOOD), flags=flags)[0] == 0
    assert "--block drafted" in capsys.readouterr().out
    out = tmp_path / "modules"
    chosen = ["--world", f"{tmp_path / 'drafted_work.py'}:ENVIRONMENT", "--block", "drafted", "--skills", "pick"]
    short = ["--sft.steps", "5", "--iterations", "1"]
    assert train_modules(write_recipe(tmp_path), out, "--from", str(logs), *chosen, *short) == 0
    module = read_module(out / "pick")
    assert module.context["form"] == "drafted" and str(module.tracker).startswith("drafted_tracker-") and "rl" in module.scores
    with gzip.open(out / "runs" / "pick" / "trajectories" / "rl-000001.jsonl.gz", "rt") as lines:
        signals = [turn.get("signals", {}) for line in lines for turn in json.loads(line)["turns"]]
    assert any("error.refused" in each for each in signals), "the draft's own rule, by its own name"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--from", "nowhere.jsonl"], "the file does not exist"),
        (["--from", "EMPTY"], "the directory has no logs"),
        (["--from", "LOST"], "no won episode to imitate"),
        (["--from", "LOST", "--sft.from", "x"], "both name logs to imitate; remove one of them"),
        (["--from", "LOST", "--families", "heat"], "no won episode to imitate"),
    ],
)
def test_unusable_logs_are_refused_before_writing(tmp_path, capsys, flags, message) -> None:
    (tmp_path / "empty").mkdir()
    lost = write_lines(tmp_path / "lost.jsonl", household(1, ["heat"], lost=1)[1:])
    flags = [{"EMPTY": str(tmp_path / "empty"), "LOST": str(lost)}.get(flag, flag) for flag in flags]
    assert train_modules(write_recipe(tmp_path), tmp_path / "new", *flags) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "new").exists()
