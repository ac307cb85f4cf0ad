"""Sandbox modes: namespaces, bubblewrap, and no isolation."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time

import pytest

from tacit.core.errors import TacitError
from tacit.sandbox import Limits, Sandbox, server
from tacit.sandbox.client import AUTO, BUBBLEWRAP, NAMESPACES, NONE, remove_stale

SMALL = Limits(wall_s=10, cpu_s=5, memory_mb=512, processes=32, file_mb=4, disk_mb=16, output_kb=64)


def open_sandbox(mode: str, **more) -> Sandbox:
    if mode == BUBBLEWRAP and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    try:
        return Sandbox(SMALL, mode=mode, **more)
    except TacitError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[NONE, BUBBLEWRAP])
def sandbox(request):
    with open_sandbox(request.param, preload=("operator:length_hint",)) as opened:
        yield opened


@pytest.fixture
def workspace(sandbox, tmp_path):
    (tmp_path / "hello.py").write_text("print('hello')\n")
    copy = sandbox.copy(tmp_path)
    yield copy
    copy.close()


def bash(workspace, command: str, **more):
    return workspace.run(["bash", "-c", command], **more)


def test_command_sees_its_workspace_at_testbed(workspace):
    result = bash(workspace, "cd /testbed && pwd && python3 /testbed/hello.py && echo text > note")
    assert (result.code, result.output) == (0, "/testbed\nhello\n")
    assert (workspace.folder / "note").read_text() == "text\n"
    assert bash(workspace, "exit 7").code == 7 and bash(workspace, "kill -9 $$").code == 128 + 9


def test_missing_program_is_named(workspace):
    result = workspace.run(["no-such-program"])
    assert result.code != 0 and "no-such-program" in result.output and "No such file or directory" in result.output


def test_environment_is_not_inherited(workspace, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-secret")
    assert "sk-secret" not in bash(workspace, "env").output


def test_limits_are_enforced(workspace):
    assert bash(workspace, "sleep 60", limits=Limits(wall_s=0.5)).killed == "time limit"
    assert bash(workspace, "head -c 100M /dev/zero > big").code != 0
    assert bash(workspace, "yes").killed in ("output limit", "time limit")
    memory = workspace.run(["python3", "-c", "x = bytearray(10**9)"])
    assert "MemoryError" in memory.output


@pytest.mark.quick_cases(1)
def test_background_processes_do_not_survive(workspace):
    bash(workspace, "(setsid nohup sleep 984 >/dev/null 2>&1 &); (sleep 984 &); sleep 0.2")
    bash(workspace, "(setsid sleep 983 &); sleep 60", limits=Limits(wall_s=1))
    time.sleep(0.3)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 984" not in commands and "sleep 983" not in commands


def test_unshare_system_call_is_refused(workspace):
    code = "import ctypes, sys; sys.exit(0 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 1)"
    assert workspace.run(["python3", "-c", code]).code == 1


def test_preloaded_function_runs_in_every_mode(sandbox, workspace):
    assert sandbox.start(workspace, ["a", "b"], function="operator:length_hint").result().code == 2


def test_bubblewrap_isolates(tmp_path):
    with open_sandbox(BUBBLEWRAP) as sandbox:
        workspace = sandbox.copy(tmp_path)
        for command in (
            "ls /root",
            "touch /usr/x",
            "touch /x",
            "cat /etc/shadow",
            "mount -t tmpfs none /tmp",
            "find / -name '*.py' -path '*tacit*' 2>/dev/null | grep -v /sandbox/",
        ):
            assert bash(workspace, command).code != 0, command
        network = "import socket; socket.create_connection(('1.1.1.1', 53), 1)"
        assert workspace.run(["python3", "-c", network]).code != 0
        assert str(sandbox.folder) not in bash(workspace, "cat /proc/*/cmdline /proc/*/environ | tr '\\0' '\\n'").output


def test_command_line_of_bubblewrap_does_not_name_the_folders_of_the_machine():
    order = {"bwrap": "bwrap", "workspace": "/work-0", "at": "/testbed", "staged": [("/stage-0", "/opt/python")]}
    order |= {"limits": {"disk_mb": 1}, "environment": {"HOME": "/home/agent"}, "arguments": ["ls"]}
    words = server.bubblewrap_words(order)
    options = os.read(int(words[2]), 1 << 16).decode()
    os.close(int(words[2]))
    os.close(int(options.split("\0")[-1]))
    assert [*words[:2], *words[3:]] == ["bwrap", "--args", "--", "ls"]
    assert "\0--ro-bind\0/stage-0\0/opt/python\0" in options and "\0--bind\0/work-0\0/testbed\0" in options


def test_auto_prefers_namespaces_and_falls_back(monkeypatch, tmp_path):
    with open_sandbox(AUTO) as sandbox:
        assert sandbox.mode in (NAMESPACES, BUBBLEWRAP)
    run = Sandbox.start

    def refuse(self, workspace, arguments, *more, **named):
        if self.mode == NAMESPACES:
            raise TacitError("commands cannot be isolated here")
        return run(self, workspace, arguments, *more, **named)

    monkeypatch.setattr(Sandbox, "start", refuse)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TacitError, match="cannot be isolated"):
        Sandbox(SMALL)
    with Sandbox(SMALL, mode=NONE) as sandbox:
        assert sandbox.copy(tmp_path).run(["true"]).code == 0


def test_namespaces_do_not_show_the_files_that_bubblewrap_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/bwrap")
    with open_sandbox(AUTO) as sandbox:
        assert sandbox.mode == NAMESPACES
        assert sandbox.copy(tmp_path).run(["cat", server.__file__]).code != 0


def test_wrong_modes_are_refused(monkeypatch):
    with pytest.raises(TacitError, match="namespaces"):
        Sandbox(mode="docker")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TacitError, match="bubblewrap is not installed"):
        Sandbox(mode=BUBBLEWRAP)


def test_folders_of_killed_owners_are_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale, foreign = tmp_path / f"tacit-sandbox-{ended.pid}-abc", tmp_path / "tacit-sandbox-abc"
    live = tmp_path / f"tacit-sandbox-{os.getpid()}-abc"
    locked = tmp_path / f"tacit-sandbox-{ended.pid}-held"
    for folder in (stale, foreign, live, locked):
        folder.mkdir()
    lock = os.open(locked, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    remove_stale(tmp_path)
    os.close(lock)
    assert not stale.exists() and foreign.exists() and live.exists() and locked.exists()
