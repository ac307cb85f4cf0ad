"""The sandbox server: a small process that forks one isolated child per command.

It imports only the standard library and the `preload` modules (pytest, for instance). It never runs untrusted code itself, and
answers JSON messages on one connection. Each child gets

    namespaces   user, mount, pid, network, ipc, uts: no network, no other processes visible
    root         a tmpfs with read-only system directories, a private /tmp, a minimal /dev, and the workspace
    privileges   no capabilities, no_new_privs, a seccomp filter, its own user id if the server runs as root
    limits       CPU time, wall time, memory, processes, file size, workspace size, output

The command's process tree lives in its own pid namespace. Its init exits with the command, so nothing survives a step. If the
server or its owner is killed, the kernel kills every child (parent-death signals).

    server -> monitor (owns the user namespace) -> init (pid 1 inside) -> command
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import importlib.util
import itertools
import json
import math
import os
import platform
import resource
import selectors
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACES = 0x00020000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # mount, user, pid, net, ipc, uts
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
MNT_DETACH, PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 2, 1, 4, 24, 36
MOUNT_SETATTR, MOUNT_ATTR_RDONLY, AT_FDCWD, AT_RECURSIVE = 442, 1, -100, 0x8000
CAPSET, PIVOT_ROOT = {"x86_64": 126, "aarch64": 91}, {"x86_64": 155, "aarch64": 41}
FIRST_UID = 1_900_000_000  # as root, concurrent commands get distinct user ids, starting here
INSIDE_ID = 1000
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("null", "zero", "full", "random", "urandom")
LOOK_S = 0.1  # how often limits are checked
CPU_GRACE_S = 5  # CPU time beyond the limit after which the kernel kills a process, in case the server was too slow
TICK = os.sysconf("SC_CLK_TCK")
OWNER_S = 5.0  # how often an idle server checks for its owner: a fork of the owner may keep the connection open
SETUP_FAILED = 125
NO_PROGRAM = 127  # as in a shell
PIPES = ("output", "report", "status")
REPORT, STATUS = 3, 4  # descriptors of these pipes in a child; output is 1 and 2
LONGEST_PATH, ENTRY_BYTES = 1024, 1024
OVERFULL = 2  # multiple of the disk limit above which no further command starts in a workspace
REPORT_BYTES = 4 << 20  # maximum size of a preloaded function's report
Message = dict[str, Any]


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    check(
        LIBC.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None),
        target,
    )


# In the child.


def bind(source: str, target: str, read_only: bool = True) -> None:
    """Bind-mount a file or directory; missing sources are skipped, symbolic links are recreated."""
    if not os.path.lexists(source):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        open(target, "a").close()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
        result = LIBC.syscall(
            MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes))
        )
        check(result, f"read-only {target}")


def enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    check(LIBC.unshare(NAMESPACES), "namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} {gid} 1")


def build_root(root: str, order: Message) -> None:
    """Switch to a tmpfs root: system directories read-only, the workspace writable, everything else absent."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
    for source in SYSTEM:
        bind(source, root + source)
    for staged, target in order["staged"]:
        bind(staged, root + target)
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", read_only=False)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")):
        os.symlink(target, f"{root}/dev/{name}")
    for folder in ("tmp", "proc", "etc", "home/agent", "old"):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    Path(f"{root}/etc/passwd").write_text(f"agent:x:{INSIDE_ID}:{INSIDE_ID}::/home/agent:/bin/bash\n")
    Path(f"{root}/etc/group").write_text(f"agent:x:{INSIDE_ID}:\n")
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={order['limits']['disk_mb']}m,nr_inodes=64k,mode=1777")
    with suppress(OSError):  # not allowed in containers with a masked /proc
        mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    bind(order["workspace"], root + order["at"], read_only=False)
    os.chdir(root)
    check(LIBC.syscall(PIVOT_ROOT[os.uname().machine], b".", b"old"), "pivot_root")
    os.chdir("/")
    check(LIBC.umount2(b"/old", MNT_DETACH), "umount")
    os.rmdir("/old")
    mount("none", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def set_limits(limits: Message, processes: bool = True) -> None:
    mb = 1 << 20
    for kind, value in (
        (resource.RLIMIT_CPU, limits["cpu_s"] + CPU_GRACE_S),
        (resource.RLIMIT_AS, limits["memory_mb"] * mb),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * mb),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        if processes or kind != resource.RLIMIT_NPROC:
            resource.setrlimit(kind, (value, value))


def drop_privileges(limits: Message) -> None:
    set_limits(limits)
    for capability in range(64):
        if LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            break
    header, data = struct.pack("Ii", 0x20080522, 0), bytes(24)
    check(LIBC.syscall(CAPSET[os.uname().machine], header, data), "capset")
    install_filter()


def run_command(order: Message, functions: dict[str, Callable[[list[str], int], int]]) -> None:
    """Exec the program, or call the preloaded function and exit. Only functions may write a report. Never returns."""
    os.close(STATUS)
    os.chdir(order["at"])
    os.umask(0o022)
    if order.get("function"):
        os.environ.clear()
        os.environ.update(order["environment"])
        os._exit(functions[order["function"]](order.pop("arguments"), REPORT) & 0xFF)
    os.close(REPORT)
    try:
        os.execvpe(order["arguments"][0], order["arguments"], order["environment"])
    except OSError as error:
        print(f"{order['arguments'][0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NO_PROGRAM)


def shell_status(code: int) -> int:
    """The status that a shell reports: 128 + N if signal N ended the command."""
    return code if code >= 0 else 128 - code


def monitor(order: Message, root: str, uid: int, pipes: Sequence[int], functions: dict[str, Any]) -> None:
    """Run a command and exit with its status. Set-up errors go to the pipe `status`, which the command cannot write to."""
    try:
        connect(*pipes)
        code = isolate(order, root, uid, functions) if order["mode"] == "namespaces" else supervise(order, uid, functions)
        os._exit(shell_status(code))
    except BaseException as error:
        with suppress(OSError):
            os.write(STATUS, f"{type(error).__name__}: {error}".encode())
        os._exit(SETUP_FAILED)


def connect(output: int, report: int, status: int) -> None:
    """Give the pipes their numbers, and close everything else of the server."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in (nothing, output, output, report, status)]
    for target, source in enumerate(moved):
        os.dup2(source, target)
    os.closerange(len(moved), 4096)


def leave_root(uid: int) -> None:
    """Take this user id if the server runs as root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def isolate(order: Message, root: str, uid: int, functions: dict[str, Any]) -> int:
    """The status of a command in namespaces: in the monitor that of init, in init that of the command."""
    leave_root(uid)
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # needed to write uid_map after the user id has changed
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    enter_user_namespace()
    init = os.fork()
    if init:
        os.closerange(0, STATUS + 1)
        return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    build_root(root, order)
    os.setsid()
    command = os.fork()
    if command == 0:
        drop_privileges(order["limits"])
        run_command(order, functions)
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # keeps the command from inspecting init
    os.closerange(0, STATUS + 1)
    while True:
        pid, code = os.wait()
        if pid == command:
            return os.waitstatus_to_exitcode(code)


def supervise(order: Message, uid: int, functions: dict[str, Any]) -> int:
    """The status of a command in mode bubblewrap or none. Kills the processes that the command leaves behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = os.fork()
    if command == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if order["mode"] == "none":
            set_limits(order["limits"], processes=False)
            install_filter()
            run_command(order, functions)
        leave_root(uid)
        set_limits(order["limits"])
        words = bubblewrap_words(order)
        os.set_inheritable(REPORT, bool(order.get("function")))
        os.close(STATUS)
        os.execv(order["bwrap"], words)
    os.closerange(0, STATUS + 1)
    _, code = os.waitpid(command, 0)
    while left := descendants(os.getpid()):
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(code)


def bubblewrap_words(order: Message) -> list[str]:
    """The bubblewrap command line, with the same root as `build_root` makes. Its options are in a file, because the command can
    read the command line of bubblewrap."""
    words = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    words += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID)]
    for source in SYSTEM:
        if os.path.islink(source):
            words += ["--symlink", os.readlink(source), source]
        elif os.path.exists(source):
            words += ["--ro-bind", source, source]
    for staged, target in order["staged"]:
        words += ["--ro-bind", staged, target]
    size = str(order["limits"]["disk_mb"] << 20)
    words += ["--dev", "/dev", "--proc", "/proc", "--size", size, "--tmpfs", "/tmp", "--dir", "/home/agent"]
    words += ["--bind", order["workspace"], order["at"], "--chdir", order["at"], "--remount-ro", "/"]
    environment = dict(order["environment"])
    command = order["arguments"]
    if order.get("function"):
        tools = [path for path in environment["PYTHONPATH"].split(":") if not path.startswith(order["at"])]
        environment["PYTHONPATH"] = ":".join(tools)  # do not import from the workspace before the function adds it to the path
        python = environment["LD_LIBRARY_PATH"].removesuffix("/lib") + "/bin/python3"
        command = [python, "-s", "-P", os.path.abspath(__file__), "call", order["function"], *command]
    for name, value in environment.items():
        words += ["--setenv", name, value]
    words += ["--seccomp", str(write_memory(make_filter()))]
    return [order["bwrap"], "--args", str(write_memory("\0".join(words).encode())), "--", *command]


def write_memory(content: bytes) -> int:
    """An inheritable descriptor to read the content from."""
    descriptor = os.memfd_create("sandbox", 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


# A seccomp filter that refuses system calls that tests and shell commands do not need: namespaces, mounts, tracing, kernel
# modules, keys, memory outside of process limits (memfd, System V), and sockets other than Unix and Internet ones (vsock
# reaches a virtual machine's host). It applies to the calling process and everything it starts. Refused calls fail with EPERM.
# `clone3` fails with ENOSYS, so that libc falls back to `clone`, whose flags the filter can check.

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME
# name: (number on x86_64, number on aarch64); None if the architecture lacks the call
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "delete_module": (176, 106), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioperm": (173, None),
    "iopl": (172, None), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "lookup_dcookie": (212, 18), "mbind": (237, 235), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "mknod": (133, None), "mknodat": (259, 33), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "move_pages": (279, 239), "msgget": (68, 186), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218), "setdomainname": (171, 162),
    "sethostname": (170, 161), "setns": (308, 268), "settimeofday": (164, 170), "shmget": (29, 194), "swapoff": (168, 225),
    "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}  # fmt: skip
CLONE, CLONE3, SOCKET = (56, 220), (435, 435), (41, 198)
SOCKETS = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
# Classic BPF opcodes.
LOAD, JUMP_EQUAL, JUMP_BITS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
X32 = 0x40000000


def install_filter() -> None:
    """Apply the filter. Raises OSError if the kernel or the architecture does not support it."""
    code = make_filter()
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    program = ctypes.create_string_buffer(header)
    for option, value in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_SECCOMP, MODE_FILTER)):
        third = ctypes.addressof(program) if option == PR_SET_SECCOMP else 0
        if LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(third), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")


def make_filter() -> bytes:
    """The BPF program: compare the call's number with each refused one, check socket's family and clone's flags, else allow."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system-call table for {machine}")
    architecture, column = ARCHITECTURES[machine], list(ARCHITECTURES).index(machine)
    refuse, missing = FAIL | errno.EPERM, FAIL | errno.ENOSYS
    lines = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if column == 0:  # 32-bit numbers of the x32 ABI would bypass the comparisons
        lines += [(JUMP_BITS, 0, 1, X32), (RETURN, 0, 0, refuse)]
    for numbers in REFUSED.values():
        if numbers[column] is not None:
            lines += [(JUMP_EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, refuse)]  # type: ignore[list-item]
    lines += [(JUMP_EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, missing)]
    families = [(JUMP_EQUAL, len(SOCKETS) - place, 0, family) for place, family in enumerate(SOCKETS)]
    lines += [(JUMP_EQUAL, 0, 6, SOCKET[column]), (LOAD, 0, 0, FIRST_ARGUMENT), *families, (RETURN, 0, 0, refuse)]
    lines += [(RETURN, 0, 0, ALLOW), (JUMP_EQUAL, 0, 3, CLONE[column])]
    lines += [(LOAD, 0, 0, FIRST_ARGUMENT), (JUMP_BITS, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, refuse), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


# In the server.


class Job:
    """One running command."""

    def __init__(self, order: Message, pid: int, pipes: dict[str, int], uid: int) -> None:
        self.order, self.pid, self.uid = order, pid, uid
        self.ended = os.pidfd_open(pid)  # readable when the process has ended
        self.pipes = pipes
        self.data = {name: bytearray() for name in pipes}
        self.dropped, self.reason = 0, ""
        self.began = time.monotonic()

    def read(self, name: str) -> bool:
        """Read what is available; False at the end of the pipe. Bytes beyond the limit are counted and dropped."""
        chunk = os.read(self.pipes[name], 1 << 16)
        limit = self.order["limits"]["output_kb"] * 1024 if name == "output" else REPORT_BYTES
        room = max(0, limit - len(self.data[name]))
        self.data[name] += chunk[:room]
        self.dropped += max(0, len(chunk) - room)
        return bool(chunk)

    def kill(self, reason: str) -> None:
        self.reason = self.reason or reason
        below = [] if self.order["mode"] == "namespaces" else descendants(self.pid)  # in namespaces the kernel kills them
        for pid in (self.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    pids, queue = [], [pid]
    while queue:
        at = f"/proc/{queue.pop()}/task"
        with suppress(OSError):  # it has ended
            for task in os.listdir(at):
                with suppress(OSError):
                    children = [int(word) for word in Path(at, task, "children").read_text().split()]
                    pids += children
                    queue += children
    return pids


def use_of(pids: Sequence[int]) -> tuple[float, float]:
    """(CPU time of the process that has used most, without its children; resident memory of all in MB)"""
    most, pages = 0.0, 0
    for pid in pids:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            most = max(most, (int(fields[11]) + int(fields[12])) / TICK)
            pages += int(fields[21])
    return most, pages * resource.getpagesize() / (1 << 20)


def open_mb(pids: Sequence[int]) -> float:
    """Size of files that are deleted but still open; `tree_mb` does not see them."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                info = os.stat(descriptor.path)
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 0:
                    sizes[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sum(sizes.values()) / (1 << 20)


def tree_mb(folder: str) -> float:
    """Disk space of a workspace, directory entries included; infinite if a directory's path exceeds LONGEST_PATH."""
    total, queue = 0, [folder]
    while queue:
        where = queue.pop()
        if len(where) > LONGEST_PATH:
            return math.inf
        with suppress(OSError):
            for entry in os.scandir(where):
                total += ENTRY_BYTES
                if entry.is_dir(follow_symlinks=False):
                    queue.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total / (1 << 20)


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a tree, including locked directories and those nested too deep for Python's recursion."""
    if os.path.islink(folder):  # `chmod -R` would change the files of its target
        os.unlink(folder)
        return
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        subprocess.run(["chmod", "-R", "u+rwx", "--", folder], stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL)


class Server:
    def __init__(self, line: Connection, folder: str, binds: dict[str, str], preload: Sequence[str]) -> None:
        """`binds`: path inside -> path outside, read-only for all commands."""
        self.line, self.folder = line, folder
        self.root = os.path.join(folder, "root")
        os.makedirs(self.root, exist_ok=True)
        self.staged = [(self.stage(outside, number), inside) for number, (inside, outside) in enumerate(binds.items())]
        own_files = {os.path.abspath(__file__), *(name.partition(":")[0] for name in preload)}  # only bubblewrap runs them
        self.shared = [(staged, inside) for staged, inside in self.staged if inside not in own_files]
        self.functions = {name: load_function(name) for name in preload}
        self.jobs: dict[int, Job] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(line, selectors.EVENT_READ, None)

    def stage(self, outside: str, number: int) -> str:
        """A path that commands can reach. As root, a bind mount below `folder`: their user ids may not enter the original."""
        if os.geteuid() != 0:
            return outside
        if number == 0:
            check(LIBC.unshare(0x00020000), "mount namespace")
            mount("none", "/", flags=MS_REC | MS_PRIVATE)
        staged = os.path.join(self.folder, f"stage-{number}")
        bind(os.path.realpath(outside), staged)
        return staged

    def serve(self, owner: int) -> None:
        """Serve until the owner process closes the connection or exits."""
        last_look = 0.0
        while os.getppid() == owner:
            for key, _ in self.selector.select(LOOK_S if self.jobs else OWNER_S):
                if key.data is None:
                    try:
                        order = json.loads(self.line.recv_bytes())
                    except EOFError:
                        return
                    self.start(order)
                    continue
                job, name = key.data
                if name and not job.read(name):
                    self.selector.unregister(key.fd)
                    os.close(key.fd)
                    del job.pipes[name]
            if time.monotonic() - last_look >= LOOK_S:
                last_look = time.monotonic()
                self.look()
            self.finish()

    def stop(self) -> bool:
        """Kill all jobs and undo the bind mounts. True if all are unmounted, so that the folder can be removed safely."""
        for pid, job in self.jobs.items():
            job.kill("")
            os.waitpid(pid, 0)
        left = [LIBC.umount2(path.encode(), MNT_DETACH) for path, _ in self.staged if path.startswith(self.folder)]
        return not any(left)

    def start(self, order: Message) -> None:
        if tree_mb(order["workspace"]) > OVERFULL * order["limits"]["disk_mb"]:
            return self.answer(order, code=128 + signal.SIGKILL, killed="disk limit")
        taken = {job.uid for job in self.jobs.values()}
        uid = next(uid for uid in itertools.count(FIRST_UID) if uid not in taken)
        ours, theirs = zip(*(os.pipe() for _ in PIPES), strict=True)
        if os.geteuid() == 0 and order["mode"] != "none":
            own_tree(order["workspace"], uid)
        order["staged"] = self.staged if order["mode"] == "bubblewrap" else self.shared
        pid = os.fork()
        if pid == 0:
            monitor(order, self.root, uid, theirs, self.functions)
        for descriptor in theirs:
            os.close(descriptor)
        job = Job(order, pid, dict(zip(PIPES, ours, strict=True)), uid)
        self.jobs[pid] = job
        for name, descriptor in list(job.pipes.items()):
            self.selector.register(descriptor, selectors.EVENT_READ, (job, name))
        self.selector.register(job.ended, selectors.EVENT_READ, (job, ""))

    def look(self) -> None:
        """Kill commands that exceed a limit."""
        for job in self.jobs.values():
            limits, seconds = job.order["limits"], time.monotonic() - job.began
            if seconds >= limits["wall_s"]:
                job.kill("time limit")
            elif job.dropped > 64 * limits["output_kb"] * 1024:
                job.kill("output limit")
            elif seconds > LOOK_S:
                inside = descendants(job.pid)
                cpu_s, resident_mb = use_of(inside)
                if cpu_s >= limits["cpu_s"]:
                    job.kill("cpu limit")
                elif resident_mb + open_mb(inside) > limits["memory_mb"]:
                    job.kill("memory limit")
                elif tree_mb(job.order["workspace"]) > limits["disk_mb"]:
                    job.kill("disk limit")

    def finish(self) -> None:
        for pid, job in list(self.jobs.items()):
            done, code = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            for name, descriptor in job.pipes.items():  # all writers are dead: drain the pipe
                self.selector.unregister(descriptor)
                while job.read(name):
                    pass
                os.close(descriptor)
            self.selector.unregister(job.ended)
            os.close(job.ended)
            del self.jobs[pid]
            self.answer(
                job.order,
                code=shell_status(os.waitstatus_to_exitcode(code)),
                output=bytes(job.data["output"]).decode("utf-8", errors="replace").replace(*job.order["show"]),
                report=bytes(job.data["report"]).decode("utf-8", errors="replace"),
                dropped=job.dropped,
                killed=job.reason,
                error=job.data["status"].decode(errors="replace"),
                seconds=time.monotonic() - job.began,
            )

    def answer(self, order: Message, **fields: Any) -> None:
        self.line.send_bytes(json.dumps({"id": order["id"], **fields}).encode())


def load_function(name: str) -> Callable[[list[str], int], int]:
    """Load `module:function`, or `module:maker=argument` for what `maker(argument)` returns; a module may be a file path."""
    module, _, function = name.partition(":")
    function, is_maker, argument = function.partition("=")
    if module.endswith(".py"):
        spec = importlib.util.spec_from_file_location(os.path.basename(module)[:-3], module)
        loaded: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(loaded)  # type: ignore[union-attr]
    else:
        loaded = importlib.import_module(module)
    member = getattr(loaded, function)
    return member(argument) if is_maker else member


def own_tree(folder: str, uid: int) -> None:
    """Change the owner of a workspace to its commands' user id; symbolic links are not followed."""
    if os.lstat(folder).st_uid == uid:
        return
    for where, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.lchown(os.path.join(where, name), uid, uid)


def main() -> None:
    if sys.argv[1] == "call":  # started by bubblewrap
        sys.exit(load_function(sys.argv[2])(sys.argv[3:], REPORT))
    descriptor, folder, binds, *preload = sys.argv[1:]
    owner = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(Connection(int(descriptor)), folder, json.loads(binds), preload)
    try:
        server.serve(owner)
    finally:
        if server.stop():
            remove_tree(folder)


if __name__ == "__main__":
    main()
