"""A seccomp filter that refuses system calls that tests and shell commands do not need: namespaces, mounts, tracing, kernel
modules, keys, memory outside of process limits (memfd, System V), and sockets other than Unix and Internet ones (vsock reaches
a virtual machine's host).

`install()` applies it to the calling process and everything it starts. Refused calls fail with EPERM. `clone3`
fails with ENOSYS, so that libc falls back to `clone`, whose flags the filter can check.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

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


def install() -> None:
    """Apply the filter. Raises OSError if the kernel or the architecture does not support it."""
    code = make_program()
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    program = ctypes.create_string_buffer(header)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_SECCOMP, MODE_FILTER)):
        third = ctypes.addressof(program) if option == PR_SET_SECCOMP else 0
        if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(third), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")


def make_program() -> bytes:
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
