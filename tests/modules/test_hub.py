"""Pushing and pulling modules with the Hugging Face client, against a fake hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, serve_hub

from tacit.modules import read_module


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub(Hub()) as server:
        yield server


def tacit(hub: Hub, home: Path, *commands: list[str], **more: str) -> list[tuple[int, str]]:
    """(exit status, output) of each command. In a new process, because the client reads its settings when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_secret",
        "COLUMNS": "400",
        **more,
    }
    script = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from tacit.cli.main import main
results = []
for command in json.load(sys.stdin):
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
        results.append((main(["modules", *command]), output.getvalue()))
print(json.dumps(results))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(commands), capture_output=True, text=True, env=environment, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return [tuple(result) for result in json.loads(ran.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_pushed_module_can_be_pulled_by_commit_or_newest(hub, modules, tmp_path):
    heat, pick, home = str(modules / "heat"), str(modules / "pick"), tmp_path / "home"
    (code, first), (other_code, second), (none, refused) = tacit(
        hub, home, ["push", heat, "me/skill"], ["push", pick, "me/skill"], ["push", str(modules), "me/both"]
    )
    assert code == other_code == 0, first + second
    assert none == 2 and "is not a module" in refused and "me/both" not in hub.commits
    assert hub.tokens == {"Bearer hf_secret"}
    (_, _), (before, sent), (after, replaced) = hub.commits["me/skill"]
    assert f"tacit modules pull me/skill@{before} --out DIR" in first and after in second
    assert set(sent) == {".gitattributes", "README.md", "module.json", *read_module(heat).files}
    assert b"base_model: tiny" in sent["README.md"] and b"tacit eval modules/heat" in sent["README.md"]
    assert json.loads(replaced["module.json"])["skill"] == "pick", "a repository holds one module"

    pinned, newest = ["pull", f"me/skill@{before}", "--out"], ["pull", "me/skill", "--out"]
    results = tacit(hub, home, [*pinned, str(tmp_path / "a")], [*newest, str(tmp_path / "b")], [*newest, str(tmp_path / "b")])
    assert [code for code, _ in results] == [0, 0, 0], results
    assert f"me/skill at commit {before}" in results[0][1] and f"heat: installed in {tmp_path / 'a' / 'heat'}" in results[0][1]
    assert f"at commit {after}" in results[1][1] and "pick: already in" in results[2][1]
    for place, original in ((tmp_path / "a" / "heat", heat), (tmp_path / "b" / "pick", pick)):
        assert read_module(place).to_json() == read_module(original).to_json() and not read_module(place).find_damage()
        assert not any(file.is_symlink() for file in place.iterdir())


@pytest.mark.slow
def test_pull_uses_the_cache_without_a_connection(hub, modules, tmp_path):
    home = tmp_path / "home"
    results = tacit(hub, home, ["push", str(modules / "heat"), "me/skill"], ["pull", "me/skill", "--out", str(tmp_path / "a")])
    assert [code for code, _ in results] == [0, 0], results
    commit = hub.commits["me/skill"][-1][0]
    again = [["pull", "me/skill", "--out", str(tmp_path / "b")], ["pull", f"me/skill@{commit}", "--out", str(tmp_path / "c")]]
    (code, output), (pinned, _) = tacit(hub, home, *again, HF_HUB_OFFLINE="1")
    assert code == pinned == 0 and "heat: installed in" in output, output
    offline = Hub()
    offline.url = "http://127.0.0.1:1"
    ((code, output),) = tacit(offline, home, ["pull", f"me/skill@{commit}", "--out", str(tmp_path / "d")])
    assert code == 0, output
    ((code, output),) = tacit(hub, home, ["pull", "me/other", "--out", str(tmp_path / "e")], HF_HUB_OFFLINE="1")
    assert code == 2 and output.startswith("error: cannot pull from the hub's me/other: ") and output.count("\n") == 1


@pytest.mark.slow
def test_pulled_module_is_checked_like_any_other(hub, modules, tmp_path):
    files = {file.name: file.read_bytes() for file in (modules / "heat").iterdir()}
    manifest = json.loads(files["module.json"])

    def offer(name: str, change: dict[str, object], **more: bytes) -> list[str]:
        hub.commit(f"me/{name}", {**files, "module.json": json.dumps({**manifest, **change}).encode(), **more})
        return ["pull", f"me/{name}", "--out", str(tmp_path / "out")]

    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    cases = {
        "pass --trust-code": offer("world", {"world": f"{tmp_path / 'evil.py'}:WORLD"}),
        "unsafe name": offer("name", {"files": {"../../evil.json": "0" * 64}}),
        "is damaged (sha256": offer("damaged", {}, **{"adapter_model.safetensors": b"x"}),
        "may only contain tensors and text": offer("code", {"files": {**manifest["files"], "x.py": "0" * 64}}),
        "cannot be used as a directory name": offer("skill", {"skill": ".."}),
        "more than the limit of 1,000,000; raise it with --max-mb": [
            *offer("large", {}, **{"more.txt": b"x" * 2_000_000}), "--max-mb", "1",
        ],
        "contains no module": ["pull", "me/empty", "--out", str(tmp_path / "out")],
        "cannot pull from the hub's me/nobody: ": ["pull", "me/nobody", "--out", str(tmp_path / "out")],
        "cannot pull from the hub's ../x: ": ["pull", "../x", "--out", str(tmp_path / "out")],
    }  # fmt: skip
    hub.commit("me/empty", {"README.md": b"x"})
    for (code, output), reason in zip(tacit(hub, tmp_path / "home", *cases.values()), cases, strict=True):
        assert code == 2 and reason in output and "Traceback" not in output, (reason, output)
    assert not (tmp_path / "out").exists() and not (tmp_path / "ran").exists()
