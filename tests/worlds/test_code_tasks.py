"""Task folders of the code world: reading, splits, and errors in damaged folders."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from dataclasses import asdict, replace

import pytest

from tacit.core.errors import TacitError
from tacit.worlds import get_environment
from tacit.worlds.code.grading import find_tools
from tacit.worlds.code.tasks import (
    KINDS,
    PACKAGED,
    SPLITS,
    Edit,
    Record,
    TaskFolder,
    apply_edits,
    broken_files,
    choose_split,
    make_task,
    open_folder,
    read_source,
    record_of,
    tasks,
    tree_digest,
)


def packaged() -> TaskFolder:
    return open_folder(PACKAGED)


def test_packaged_tasks_load_in_every_split():
    folder = packaged()
    assert not folder.failures and len(folder.packages) == 5
    assert len(folder.records) >= 100
    counts = {split: sum(record.split == split for record in folder.records) for split in SPLITS}
    assert all(counts.values()), counts
    assert len({record.id for record in folder.records}) == len(folder.records)


def test_edits_apply_and_sources_still_compile():
    folder = packaged()
    for record in folder.records:
        for path, text in broken_files(record, folder.tree(record)).items():
            compile(text, path, "exec")
            assert text != read_source(folder.tree(record) / path)
        assert 1 <= len(record.fail_to_pass) <= 10
        passing = folder.packages[f"{record.package}-{record.version}"].passing
        assert set(record.fail_to_pass) <= set(passing)
        assert not set(folder.pass_to_pass(record)) & set(record.fail_to_pass)


def test_splits_share_no_packages_kinds_or_sites():
    records = packaged().records
    train = [r for r in records if r.split in ("train", "test")]
    assert not {r.package for r in train} & {r.package for r in records if r.split == "other_packages"}
    held_out = {r.kinds[0] for r in records if r.split == "other_kinds" and len(r.kinds) == 1}
    assert held_out and not held_out & {kind for r in train for kind in r.kinds}
    edits = {
        split: {(r.package, e.path, e.start) for r in records if r.split == split for e in r.edits}
        for split in ("train", "test")
    }
    assert not edits["train"] & edits["test"]


def test_issue_does_not_name_the_line():
    import re

    for record in packaged().records:
        assert not re.search(r"\.py:\d|\bline \d", record.issue), record.id


def test_tasks_depend_on_seed_and_extend_shorter_lists():
    few, many = tasks("train", 5, 3), tasks("train", 12, 3)
    assert [t.id for t in few] == [t.id for t in many[:5]] and [t.id for t in tasks("train", 5, 4)] != [t.id for t in few]
    assert all(t.family in KINDS or t.family == "several" for t in many)
    assert {t.family for t in tasks("train", 50, 0, ("negation",))} == {"negation"}


def test_record_of_recovers_the_record_of_a_task():
    task = tasks("train", 1, 0)[0]
    record, folder = record_of(task)
    assert record.id in task.id and folder.root == PACKAGED
    assert Record.from_dict(json.loads(json.dumps(dict(task.data)))["record"]) == record
    with pytest.raises(TacitError, match="not a repair task"):
        record_of(replace(task, data={}))


def test_apply_edits_rejects_edits_that_do_not_match():
    edit = Edit("a.py", 4, 5, "<", ">")
    assert apply_edits("x = 1 < 2", [Edit("a.py", 6, 7, "<", ">")]) == "x = 1 > 2"
    with pytest.raises(TacitError, match=r"a\.py: characters 4 to 5"):
        apply_edits("x = 1 < 2", [edit])


def test_splits_are_chosen_by_package_then_kind_then_site():
    assert choose_split("p", ["comparison"], "a.py:f", ["p"], []) == "other_packages"
    assert choose_split("p", ["comparison", "boolean"], "a.py:f", [], ["boolean"]) == "other_kinds"
    found = {choose_split("p", ["comparison"], f"a.py:f{n}", [], []) for n in range(100)}
    assert found == {"train", "test"}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "tasks"
    shutil.copytree(PACKAGED, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_copied_folder_gives_the_same_tasks(folder):
    mine = tasks("test", 4, 0, root=folder)
    assert [t.id for t in mine] == [t.id for t in tasks("test", 4, 0)]
    name = open_folder(folder).name
    assert name and {t.data["folder"] for t in mine} == {name} and str(folder) not in str(mine[0].data)
    assert record_of(mine[0])[1].root == folder
    world = get_environment(f"code+folder={folder}")
    assert [t.id for t in world.tasks("test", 4, 0)] == [t.id for t in mine] and not world.panels


def test_damaged_task_lines_are_reported_and_skipped(folder, caplog):
    lines = (folder / "tasks.jsonl").read_text().splitlines()
    good = json.loads(lines[0])
    bad = ["{half a line", json.dumps({**good, "id": "x", "fail_to_pass": []}), json.dumps({"id": "y"}), lines[0],
           json.dumps({**good, "id": "z", "edits": [{**good["edits"][0], "path": "../../etc/passwd"}]}),
           "null", json.dumps({**good, "id": "u", "edits": [{**good["edits"][0], "start": 1, "end": 2}]}),
           json.dumps({**good, "id": "w", "kinds": ["typo"]}), json.dumps({**good, "id": "v", "package": "other"})]  # fmt: skip
    (folder / "tasks.jsonl").write_text("\n".join([*lines, *bad]) + "\n")
    opened = open_folder(folder)
    assert len(opened.records) == len(lines) and len(opened.failures) == len(bad)
    failures = "\n".join(opened.failures)
    for words in (
        f"line {len(lines) + 1}",
        "no failing tests",
        "has no package",
        "occurs twice",
        "outside",
        "typo",
        "which was skipped",
        "the line is None, not a JSON object",
        "characters 1 to 2 are not",
    ):
        assert words in failures, (words, failures)


def test_changed_package_is_reported_and_its_tasks_skipped(folder):
    path = folder / "packages/spans-1.0/spans/core.py"
    path.write_text(path.read_text() + "\n# changed\n")
    opened = open_folder(folder)
    assert "spans-1.0" not in opened.packages and any("spans-1.0: its files" in failure for failure in opened.failures)
    assert not any(record.package == "spans" for record in opened.records) and opened.records


def test_package_with_links_or_paths_outside_is_skipped(folder, tmp_path):
    (tmp_path / "outside").mkdir()
    (folder / "packages/spans-1.0/tests/more").symlink_to(tmp_path / "outside")
    pipe = (
        folder
        / "packages/wordsmith-1.0"
        / next(e.path for r in packaged().records for e in r.edits if r.package == "wordsmith")
    )
    pipe.unlink()
    os.mkfifo(pipe)
    (folder / "packages/almanac-1.0/inside.py").symlink_to("almanac/__init__.py")
    shutil.copytree(folder / "packages/almanac-1.0", tmp_path / "x-1.0", symlinks=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["packages"].append({"name": "../../x", "version": "1.0", "passing": []})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    line = json.loads((folder / "tasks.jsonl").read_text().splitlines()[0])
    with (folder / "tasks.jsonl").open("a") as file:
        file.write(json.dumps({**line, "id": "w", "package": "../../x", "version": "1.0"}) + "\n")
    opened = open_folder(folder)
    assert "almanac-1.0" in opened.packages and not {"spans-1.0", "wordsmith-1.0", "../../x-1.0"} & set(opened.packages)
    failures = "\n".join(opened.failures)
    assert (
        "is a symbolic link" in failures
        and "is no regular file" in failures
        and "a name has no slash" in failures
        and not any(r.id == "w" for r in opened.records)
    )


def test_missing_folder_or_wrong_format_is_rejected(folder, tmp_path):
    with pytest.raises(TacitError, match="tacit prepare code"):
        open_folder(tmp_path / "nowhere")
    (folder / "manifest.json").write_text('{"format": 99, "packages": []}')
    with pytest.raises(TacitError, match="format 99"):
        open_folder(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(TacitError, match="damaged"):
        open_folder(folder.resolve() / ".")


def test_tree_digest_ignores_pycache(folder):
    tree = folder / "packages/spans-1.0"
    before = tree_digest(tree)
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert tree_digest(tree) == before
    (tree / "new.py").write_text("")
    assert tree_digest(tree) != before


def test_world_options_are_read_from_the_name():
    hidden = get_environment("code+tests=hidden")
    assert all(task.data["tests"] == "hidden" for task in hidden.tasks("train", 3, 0))
    for name, message in (
        ("code+test=hidden", "Did you mean 'tests'"),
        ("code+tests=maybe", "hidden, shown"),
        ("countdown+x=y", "option 'x'"),
    ):
        with pytest.raises(TacitError, match=message):
            get_environment(name)


def test_record_survives_json_round_trip():
    record = packaged().records[0]
    assert Record.from_dict(json.loads(json.dumps(asdict(record)))) == record
    assert make_task(record).goal == record.issue


def test_panels_match_pinned_hashes():
    from tacit.evaluation.panels import Panel, hash_tasks

    world = get_environment("code")
    assert world.published == {split: max(hashes) for split, hashes in world.panels.items()}
    for split, hashes in world.panels.items():
        found = Panel.of(world, split, max(hashes)).tasks
        assert {size: hash_tasks(found[:size]) for size in hashes} == hashes


def test_missing_pytest_error_says_what_to_install(monkeypatch):
    def refuse(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.distribution", refuse)
    with pytest.raises(TacitError, match=r"it needs pytest: `pip install 'tacit-agents\[code\]'`"):
        get_environment("code").check_ready()
    with pytest.raises(TacitError, match=r"the code world needs pytest to run tests: `pip install 'tacit-agents\[code\]'`"):
        find_tools()
