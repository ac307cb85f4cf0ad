"""`tacit bank`: list, explain, remove and export; a path that holds no bank is refused with the remedy."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tacit.cli.main import main
from tacit.companions.experience.bank import Bank, Origin
from tacit.companions.experience.retrieval import NgramEmbedding

EMBED = NgramEmbedding()
TEXTS = ("look in the red drawer first", "heat it in the microwave", "the blue door is locked")


@pytest.fixture
def run(tmp_path):
    """A run with four entries: the first won twice, the second lost, the third was replaced by the fourth."""
    path = tmp_path / "run" / "experience" / "bank.sqlite"
    bank = Bank(path, EMBED.name, EMBED.dimensions)
    for i, text in enumerate(TEXTS):
        bank.add(text, EMBED([text])[0], Origin("alfworld", "heat", f"task/{i}", 40 + i, i == 0, 1))
    bank.record("retrieved", [1, 2, 2, 2], 2)
    bank.record("guided", [1], 2, "task/9", True)
    bank.record("guided", [1], 3, "task/8", True)
    bank.record("guided", [2], 3, "task/8", False)
    better = "the blue door opens with the green key"
    origin = Origin("alfworld", "heat", "task/7", 50, False, 3, "update", (3,))
    bank.replace([3], [(better, EMBED([better])[0], origin, None)], "updated")
    bank.close()
    return tmp_path / "run"


def run_bank(capsys, *words) -> str:
    assert main(["bank", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys, *words) -> str:
    assert main(["bank", *map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("order", "ids"), [("use", [2, 1, 4]), ("useful", [1]), ("harmful", [2])])
def test_list_orders_and_limits_entries(run, capsys, order, ids):
    found = json.loads(run_bank(capsys, "list", run, "--by", order, "--json"))
    assert [entry["id"] for entry in found] == ids
    text = run_bank(capsys, run, "--by", order, "--most", 1)
    assert f"1 of {len(ids)} entries" in text and "3 in the bank (3-grams)" in text


def test_explain_shows_origin_and_outcomes(run, capsys):
    text = run_bank(capsys, "explain", run, 1)
    assert "a success in alfworld heat task/0, episode seed 40, iteration 1" in text
    assert "2 episodes: 2 won, 0 lost" in text and "task/9" in text and "live" in text
    text = run_bank(capsys, "explain", run, 4)
    assert "replaced 3 (updated): the blue door is locked" in text and "a failure" in text
    assert "retired: updated; replaced by 4" in run_bank(capsys, "explain", run, 3)
    assert json.loads(run_bank(capsys, "explain", run, 3, "--json"))["replaced_by"] == [4]
    assert "no entry 99" in refused(capsys, "explain", run, 99)


def test_removed_entries_are_retired_not_deleted(run, capsys):
    assert "no entry 77" in refused(capsys, "remove", run, 1, 77)
    assert len(json.loads(run_bank(capsys, "list", run, "--json"))) == 3, "all of them or none"
    assert "removed 2; 1 are left" in run_bank(capsys, "remove", run, 1, 2, 1)
    assert [e["id"] for e in json.loads(run_bank(capsys, "list", run, "--json"))] == [4]
    assert "retired: removed by hand" in run_bank(capsys, "explain", run, 1)


def test_export_writes_live_entries(run, tmp_path, capsys):
    file = tmp_path / "bank.jsonl"
    assert "3 entries" in run_bank(capsys, "export", run, file)
    assert run_bank(capsys, "export", run, "-") == file.read_text(encoding="utf-8")
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {e["text"] for e in found} == {*TEXTS[:2], "the blue door opens with the green key"}


def test_path_without_a_bank_is_refused_and_unchanged(run, tmp_path, capsys):
    assert "there is no experience bank" in refused(capsys, "list", tmp_path / "nowhere.sqlite")
    assert "a method with experience" in refused(capsys, "list", tmp_path)
    assert not (tmp_path / "nowhere.sqlite").exists() and not (tmp_path / "experience").exists()
    (tmp_path / "junk.sqlite").write_bytes(b"junk, by any means" * 400)
    message = refused(capsys, "list", tmp_path / "junk.sqlite")
    assert "is damaged" in message and "tacit train --resume RUN" in message
    foreign = sqlite3.connect(tmp_path / "foreign.sqlite")
    foreign.execute("CREATE TABLE mine (x)")
    foreign.commit()
    foreign.close()
    before = (tmp_path / "foreign.sqlite").read_bytes()
    assert "another SQLite database" in refused(capsys, "list", tmp_path / "foreign.sqlite")
    assert (tmp_path / "foreign.sqlite").read_bytes() == before
    assert "unknown command 'serach' of `tacit bank`" in refused(capsys, "serach", run)


@pytest.mark.parametrize(
    "damage", ["UPDATE entries SET vector = x'00' WHERE id = 1", "UPDATE entries SET origin = '{' WHERE id = 1"]
)
def test_bank_with_damaged_row_is_refused(run, capsys, damage):
    disk = sqlite3.connect(run / "experience" / "bank.sqlite")
    disk.execute(damage)
    disk.commit()
    disk.close()
    assert "is damaged" in refused(capsys, "list", run)


def test_control_characters_are_escaped(tmp_path, capsys):
    """Models write the entries and worlds write their origins. Neither may send control codes to the terminal."""
    path = tmp_path / "bank.sqlite"
    bank, evil = Bank(path, EMBED.name, EMBED.dimensions), "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202eecalp \u2028 \x85"
    bank.add(evil, EMBED([evil])[0], Origin("world", "family", "task\x1b[31m"))
    bank.record("guided", [1], 1, "task\x1b[2J", True)
    better = "better\u00a0🦊"
    bank.replace([1], [(better, EMBED([better])[0], Origin(task="t\x1bc", made_from=(1,)), None)], "updated")
    bank.add(f"again {evil}", EMBED([evil])[0], Origin())
    bank.close()
    for words in (("list", path), ("explain", path, 1), ("explain", path, 2)):
        text = run_bank(capsys, *words)
        assert "\\x1b" in text and not [c for c in text if not (c.isprintable() or c in "\n\xa0")], words
    assert better in text
    assert "again \\x1b[2J\\x1b]0;owned" in run_bank(capsys, "list", path).replace("\n", "")
