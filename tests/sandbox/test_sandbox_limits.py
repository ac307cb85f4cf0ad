"""The sandbox: what commands can do, and escape attempts. Each attempt must fail or be killed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.core.errors import TacitError
from tacit.sandbox import Limits, Sandbox, Workspace, server
from tacit.sandbox.client import remove_stale

SMALL = Limits(wall_s=5, cpu_s=3, memory_mb=256, processes=32, file_mb=4, disk_mb=16, output_kb=64)


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = Sandbox(SMALL)
    except TacitError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def workspace(sandbox, tmp_path):
    (tmp_path / "hello.py").write_text("print('hello')\n")
    copy = sandbox.copy(tmp_path)
    yield copy
    copy.close()


def bash(workspace: Workspace, command: str, **more):
    return workspace.run(["bash", "-c", command], **more)


def python(workspace: Workspace, code: str, **more):
    return workspace.run(["python3", "-c", code], **more)


def test_command_runs_in_its_workspace(workspace):
    result = bash(workspace, "pwd; python3 hello.py; echo text > note; id -un")
    assert (result.code, result.output, result.killed) == (0, "/testbed\nhello\nagent\n", "")
    assert (workspace.folder / "note").read_text() == "text\n"
    assert bash(workspace, "cat note").output == "text\n", "files stay between commands"


def test_exit_status_and_signals_are_reported(workspace):
    assert bash(workspace, "exit 7").code == 7
    assert bash(workspace, "kill -9 $$").code == 128 + 9


def test_workspaces_do_not_see_each_other(sandbox, workspace, tmp_path):
    other = sandbox.copy(tmp_path)
    (other.folder / "secret").write_text("x")
    names = " ".join([str(other.folder), str(sandbox.folder)])
    assert bash(workspace, f"ls {names}").code != 0
    assert not bash(workspace, "find / -name secret 2>/dev/null").output
    other.close()


def test_environment_is_not_inherited(workspace, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-secret")
    output = bash(workspace, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'").output
    assert "sk-secret" not in output and "API_KEY" not in output


def test_commands_run_concurrently(sandbox, tmp_path):
    workspaces = [sandbox.copy(tmp_path) for _ in range(8)]
    began = time.monotonic()
    futures = [sandbox.start(each, ["bash", "-c", f"sleep 0.5; echo {n}"]) for n, each in enumerate(workspaces)]
    assert [future.result().output for future in futures] == [f"{n}\n" for n in range(8)]
    assert time.monotonic() - began < 4


READS = {
    "home of root": "ls /root",
    "home directories": "ls -A /home/agent | grep .",
    "shadow": "cat /etc/shadow",
    "the host's passwd": "grep root /etc/passwd",
    "ssh keys": "cat /root/.ssh/id_rsa ~/.ssh/id_rsa",
    "the trainer's memory": "cat /proc/1/mem",
    "the trainer's maps": "cat /proc/1/maps",
    "init's descriptors": "ls /proc/1/fd",
    "kernel memory": "cat /dev/mem /dev/kmem",
    "disks": "cat /dev/vda /dev/sda",
    "kernel log": "dmesg | grep .",
    "parent directory by ..": "ls ../../../root ../../../../root",
    "symlink out": "ln -s /etc/shadow s && cat s",
    "hard link out": "ln /etc/passwd h && grep root h",
    "mounts of the host": "cut -d' ' -f5 /proc/self/mountinfo | grep -vE '^/($|usr|s?bin|lib|etc|dev|opt|proc|tmp|testbed)'",
    "docker socket": "ls /var/run/docker.sock /run",
    "sys": "ls /sys/kernel",
    "cgroups": "ls /sys/fs/cgroup",
}
WRITES = {
    "system": "touch /usr/x",
    "root directory": "touch /x",
    "etc": "echo x >> /etc/passwd",
    "python installation": "echo x > $(python3 -c 'import os; print(os.__file__)')",
    "a module of the interpreter": "touch $(python3 -c 'import os; print(os.path.dirname(os.__file__))')/evil.py",
    "proc sysrq": "echo b > /proc/sysrq-trigger",
    "core pattern": "echo '|/bin/sh' > /proc/sys/kernel/core_pattern",
    "oom score of others": "echo -1000 > /proc/1/oom_score_adj",
    "remount": "mount -o remount,rw /usr",
    "bind mount": "mkdir -p m && mount --bind /usr m",
    "tmpfs": "mkdir -p m && mount -t tmpfs none m",
    "unmount": "umount /testbed",
    "device node": "mknod d c 1 3",
    "chroot": "chroot . true",
    "change owner": "chown 0:0 hello.py",
    "setuid file": "cp /bin/id i && chmod u+s i && ./i -u | grep -x 0",
    "sudo": "sudo -n true",
    "su": "su -c true",
    "hostname": "hostname evil",
    "clock": "date -s 2000-01-01",
    "renice": "renice -n -20 1",
    "new user namespace": "unshare -Ur true",
    "new mount namespace": "unshare -m true",
    "nsenter": "nsenter -t 1 -m true",
}
CODE = {
    "socket to the internet": "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
    "loopback server of the host": "import socket; socket.create_connection(('127.0.0.1', 22), 2)",
    "name lookup": "import socket; socket.getaddrinfo('example.org', 80)",
    "raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "packet socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "the virtual machine's host": "import socket; socket.socket(40, socket.SOCK_STREAM)",
    "kernel cryptography": "import socket; socket.socket(38, socket.SOCK_SEQPACKET)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "abstract socket of the host": "import socket; s=socket.socket(socket.AF_UNIX); s.connect('\\0/tmp/.X11-unix/X0')",
    "setuid 0": "import os; os.setuid(0)",
    "setgroups": "import os; os.setgroups([0])",
    "kill init": "import os, time; os.kill(1, 9); time.sleep(.2); os.kill(1, 0); raise SystemExit(1)",
    "raise limits": "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
}
LEAK = """
import os
for number in range(3, 100):
    try:
        {}
    except OSError:
        continue
    raise SystemExit(0)
raise SystemExit(1)
"""
CODE |= {
    "write to a leaked descriptor": LEAK.format("os.write(number, b'x')"),
    "leave through a leaked directory": LEAK.format("os.fchdir(number)"),
}
CALLS = "import ctypes, sys; result = ctypes.CDLL(None).syscall({}, {}); sys.exit(0 if result >= 0 else 1)"
COLUMN = list(server.ARCHITECTURES).index(platform.machine()) if platform.machine() in server.ARCHITECTURES else 0
CODE |= {
    f"system call {name}": CALLS.format(server.REFUSED[name][COLUMN], arguments)
    for name, arguments in {
        "ptrace": "16, 1, 0, 0", "unshare": "0x10000000", "setns": "3, 0", "mount": "b'none', b'/tmp', b'tmpfs', 0, 0",
        "open_by_handle_at": "-100, 0, 0", "keyctl": "0, -3, 0", "bpf": "0, 0, 0", "io_uring_setup": "8, 0",
        "process_vm_readv": "1, 0, 0, 0, 0, 0", "perf_event_open": "0, 0, -1, -1, 0", "userfaultfd": "0",
        "name_to_handle_at": "-100, b'/', 0, 0, 0", "personality": "0x0040000", "memfd_create": "b'x', 0",
        "shmget": "0, 1 << 20, 0o1600", "msgget": "0, 0o1600",
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_reading_outside_fails(workspace, name):
    result = bash(workspace, READS[name])
    assert result.code != 0, result.output


@pytest.mark.parametrize("name", WRITES)
def test_changing_anything_outside_fails(workspace, name):
    result = bash(workspace, WRITES[name])
    assert result.code != 0, result.output


@pytest.mark.parametrize("name", CODE)
def test_system_calls_and_network_fail(workspace, name):
    result = python(workspace, CODE[name])
    assert result.code != 0, result.output


def test_time_limit_kills_the_command(workspace):
    result = bash(workspace, "sleep 60", limits=Limits(wall_s=0.5))
    assert result.killed == "time limit" and result.code == 128 + 9 and result.seconds < 5


LOOP = 'python3 -c "while True: pass"'


@pytest.mark.slow
@pytest.mark.parametrize("command", [LOOP, f"{LOOP}; echo on", f"{LOOP} | tail -1", "while :; do :; done"])
def test_cpu_limit_kills_the_command(workspace, command):
    result = bash(workspace, command, limits=Limits(wall_s=60, cpu_s=1))
    assert result.killed == "cpu limit" and result.output == "" and result.seconds < 40


@pytest.mark.slow
def test_cpu_limit_is_per_process_and_counts_no_sleep(workspace):
    spin = 'python3 -c "import time\nwhile time.process_time() < 0.7: pass\ntime.sleep(0.5)"'
    result = bash(workspace, f"{spin} && {spin} && echo on", limits=Limits(wall_s=60, cpu_s=1))
    assert (result.killed, result.output) == ("", "on\n")


def test_memory_of_one_process_is_limited(workspace):
    assert "MemoryError" in python(workspace, "x = bytearray(10**9)").output


def test_memory_of_many_processes_is_limited(workspace):
    code = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(100 << 20)\ntime.sleep(9)"
    assert python(workspace, code).killed == "memory limit"


def test_fork_bomb_is_contained(workspace):
    limits = Limits(wall_s=3, processes=32, memory_mb=256)
    code = "import os, time\ntry:\n    for n in range(1000): os.fork() or time.sleep(9)\nexcept BlockingIOError: print(n)"
    assert 10 < int(python(workspace, code, limits=limits).output) < 32
    bash(workspace, ":(){ :|:& };:; wait", limits=limits)  # its first process may end at once; the rest is killed
    assert bash(workspace, "echo alive").output == "alive\n"


def test_large_file_is_refused(workspace):
    assert bash(workspace, "head -c 100M /dev/zero > big").code != 0
    assert (workspace.folder / "big").stat().st_size <= SMALL.file_mb << 20


def test_many_files_hit_the_disk_limit(workspace):
    code = "import itertools\nfor n in itertools.count(): open(str(n), 'wb').write(bytes(1 << 20))"
    assert python(workspace, code).killed == "disk limit"


def test_many_empty_files_hit_the_disk_limit(workspace):
    code = "import itertools\nfor n in itertools.count(): open(str(n), 'w').close()"
    assert python(workspace, code).killed == "disk limit"


def test_deleted_open_files_count_as_memory(workspace):
    code = "import os, time\nfor n in range(100):\n    f = os.open('x', os.O_CREAT | os.O_RDWR)\n    os.unlink('x')\n"
    assert python(workspace, f"{code}    os.write(f, bytes(4 << 20))\ntime.sleep(9)").killed == "memory limit"


def test_many_files_in_tmp_are_limited(workspace):
    code = "import itertools\nfor n in itertools.count(): os.close(os.open(f'/tmp/{n}', os.O_CREAT))"
    result = python(workspace, f"import os\n{code}", limits=Limits(wall_s=20))
    assert "No space left" in result.output


DEEP = "import os\nfor n in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('x', 'wb').write(bytes(1 << 20))"


def test_deep_directories_stop_only_their_own_workspace(sandbox, tmp_path):
    deep, other = sandbox.copy(tmp_path), sandbox.copy(tmp_path)
    python(deep, f"{DEEP}\nimport time; time.sleep(2)")
    assert python(deep, "print('on')").killed == "disk limit"
    assert python(other, "print('on')").output == "on\n"
    for workspace in (deep, other):
        workspace.close()
        assert not workspace.folder.exists()


def test_deep_directories_of_a_killed_owner_are_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale = tmp_path / f"tacit-sandbox-{ended.pid}-deep"
    stale.mkdir()
    subprocess.run([sys.executable, "-c", DEEP], cwd=stale, check=True)
    remove_stale(tmp_path)
    assert not stale.exists()


def test_internet_and_unix_sockets_can_be_created(workspace):
    code = "import socket; socket.socket(); socket.socket(socket.AF_INET6); socket.socketpair(); print('made')"
    assert python(workspace, code).output == "made\n"


def test_private_tmp_is_limited_and_removed_after_the_command(workspace):
    assert bash(workspace, "for n in $(seq 30); do head -c 1M /dev/zero > /tmp/$n || exit 1; done").code != 0
    assert bash(workspace, "ls -A /tmp").output == ""


def test_output_is_limited(workspace):
    result = bash(workspace, "yes")
    assert result.killed in ("output limit", "time limit") and len(result.output) <= SMALL.output_kb * 1024 and result.dropped


def test_binary_output_is_decoded_as_text(workspace):
    assert "�" in bash(workspace, "head -c 100 /dev/urandom; printf '\\xff'").output


def test_daemons_do_not_survive(workspace):
    bash(workspace, "(setsid nohup sleep 987 >/dev/null 2>&1 &) ; (trap '' TERM HUP; sleep 986 &) ; disown -a; exit 0")
    time.sleep(0.3)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 987" not in commands and "sleep 986" not in commands


def test_symlinked_files_outside_are_not_changed(sandbox, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    owner = outside.stat().st_uid
    workspace = sandbox.copy(tree)
    assert bash(workspace, "echo x > link").code != 0
    assert outside.read_text() == "mine" and outside.stat().st_uid == owner
    workspace.close()


def test_killed_owner_leaves_no_processes_or_mounts(tmp_path):
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom tacit.sandbox import Sandbox\n"
        "sandbox = Sandbox(); w = sandbox.copy(Path(sys.argv[1])); sandbox.start(w, ['sleep', '985'])\n"
        "print(sandbox.folder, flush=True); time.sleep(60)"
    )
    (tmp_path / "tree").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "tree")], stdout=subprocess.PIPE, text=True, env=environment
    )
    folder = owner.stdout.readline().strip()
    if not folder:
        pytest.skip("user namespaces are not allowed here")
    time.sleep(0.3)
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 10
    while "sleep 985" in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert folder not in Path("/proc/self/mountinfo").read_text()


FUNCTIONS = """
import os

def greet(arguments, report):
    print(os.getcwd(), arguments, flush=True)
    os.write(report, b"report")
    return 3

def make_adder(number):
    return lambda arguments, report: int(number) + int(arguments[0])
"""


def test_preloaded_function_runs_in_a_fork(tmp_path):
    (tmp_path / "given.py").write_text(FUNCTIONS)
    greet, add = (f"{tmp_path}/given.py:{name}" for name in ("greet", "make_adder=40"))
    try:
        opened = Sandbox(SMALL, preload=(greet, add))
    except TacitError as error:
        pytest.skip(str(error))
    with opened as sandbox:
        workspace = sandbox.copy(tmp_path)
        result = sandbox.start(workspace, ["a", "b"], function=greet).result()
        assert (result.code, result.output, result.report) == (3, "/testbed ['a', 'b']\n", "report")
        assert sandbox.start(workspace, ["2"], function=add).result().code == 42
        leak = "for n in 3 4 5 6; do echo x >&$n && exit 0; done; exit 1"
        result = sandbox.start(workspace, ["bash", "-c", leak]).result()
        assert result.code == 1 and result.report == "", "programs have no report pipe"


def test_dead_sandbox_server_is_an_error(tmp_path):
    try:
        sandbox = Sandbox(SMALL)
    except TacitError as error:
        pytest.skip(str(error))
    workspace = sandbox.copy(tmp_path)
    sandbox.process.kill()
    with pytest.raises(TacitError, match="sandbox server"):
        workspace.run(["true"])
        workspace.run(["true"])
    sandbox.close()
