"""Confines the child before it runs third-party code; standard library only.

It is copied beside the runner and imported there by its bare name: a child has none of our
packages. Each measure is attempted and its success reported by name; none is presumed.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
CLONE_THREAD, UNIX = 0x10000, 1
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER, DEATH_SIGNAL, KILL = 38, 22, 2, 1, 9
PRIVATE, READ_ONLY, RECURSIVE = 0x40000, 1, 0x4000  # flags of mount

# Landlock's rights: those of ABI 1 and later additions, and those that apply to files.
EXECUTE, WRITE, READ, LIST, REFER, TRUNCATE, DEVICES = (
    1 << bit for bit in (0, 1, 2, 3, 13, 14, 15)
)
ABI_1 = (1 << 13) - 1
OF_FILES = EXECUTE | WRITE | READ | TRUNCATE | DEVICES
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446

# System calls by machine: (AUDIT_ARCH, those refused, clone3, clone, kill, tgkill, socket,
# sched_setaffinity, prlimit64, fcntl, ioctl).
REFUSED = {
    "x86_64": (
        0xC000003E,
        (57, 58, 59, 322, 200, 101, 310, 311, 434, 424, 438, 425, 426, 427, 321, 298, 165, 166, 429,
         428, 430, 272, 308, 161, 155, 227, 164, 159, 305, 250, 248, 249, 175, 313, 176, 169, 246,
         167, 323, 222, 129, 297, 141, 251, 142, 144, 314),
        435, 56, 62, 234, 41, 203, 302, 72, 16,
    ),
    "aarch64": (
        0xC00000B7,
        (221, 281, 130, 117, 270, 271, 434, 424, 438, 425, 426, 427, 280, 241, 40, 39, 429, 428,
         430, 97, 268, 51, 41, 112, 170, 171, 266, 219, 217, 218, 105, 273, 106, 142, 104, 224,
         282, 107, 138, 240, 140, 30, 118, 119, 274),
        435, 220, 129, 131, 198, 122, 261, 25, 29,
    ),
}  # fmt: skip
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
EPERM, ENOSYS = 1, 38
OWNERS = (8, 10, 15), (0x8901, 0x8902)  # of fcntl and ioctl: who is signalled by a file

libc = ctypes.CDLL(None, use_errno=True)


def confine(
    readable: Sequence[str], writable: Sequence[str], hidden: Sequence[str],
    memory: int, files: int, seconds: int, processes: bool,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Remove from this process and its children what a kernel does not need; returns each measure
    with "" if it took effect, or the reason why not.

    Only files under `readable` can be read and only those under `writable` written; folders in
    `hidden` are empty. `memory` is in bytes of data, `files` in bytes of the largest file,
    `seconds` in CPU time; without `processes` it may start threads only.
    """
    measures: list[tuple[str, Callable[[], None]]] = [
        ("ends with the judge", lambda: _prctl(DEATH_SIGNAL, KILL)),
        ("limits of memory, files and CPU time", lambda: _limit(memory, files, seconds)),
        ("no network (namespace)", lambda: _alone(hidden)),
        ("no new privileges", lambda: _prctl(NO_NEW_PRIVILEGES, 1)),
        ("files of its folder only (Landlock)", lambda: _landlock(readable, writable)),
        ("system calls (seccomp)", lambda: _filter(processes)),
    ]
    for name, take in measures:
        try:
            take()
        except (OSError, ValueError, KeyError, AttributeError) as error:
            yield name, str(error) or type(error).__name__
        else:
            yield name, ""


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _prctl(option: int, value: int) -> None:
    _checked(libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))), "prctl")


def _limit(memory: int, files: int, seconds: int) -> None:
    for kind, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, files),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 512),
    ):
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # killed first when out of memory


def _alone(hidden: Sequence[str]) -> None:
    """Enter namespaces of its own: no network, our packages hidden, few threads."""
    user, group = os.getuid(), os.getgid()
    _checked(libc.unshare(NEWUSER | NEWNS | NEWNET | NEWIPC | NEWUTS), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)
    resource.setrlimit(resource.RLIMIT_NPROC, (1024, 1024))  # of this namespace only
    _checked(libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None), "mount /")
    for folder in hidden:
        where = folder.encode()
        _checked(libc.mount(b"none", where, b"tmpfs", READ_ONLY, b"size=4k"), f"mount {folder}")


def _landlock(readable: Sequence[str], writable: Sequence[str]) -> None:
    abi = _checked(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1), "Landlock")
    every = ABI_1 | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0)
    every |= DEVICES if abi >= 5 else 0
    attributes = struct.pack("QQQ", every, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    made = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    rules = _checked(made, "Landlock")
    for paths, rights in ((readable, EXECUTE | READ | LIST), (writable, every)):
        for path in filter(os.path.exists, paths):
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights if os.path.isdir(path) else rights & OF_FILES  # noqa: PTH112
            rule = struct.pack("=Qi", allowed & every, folder)
            _checked(libc.syscall(ADD_RULE, rules, 1, rule, 0), f"Landlock {path}")
            os.close(folder)
    _checked(libc.syscall(RESTRICT_SELF, rules, 0), "Landlock")
    os.close(rules)


def _filter(processes: bool) -> None:
    """Install the seccomp filter: no exec, no access to other processes (ptrace, signals, limits,
    affinity), no setting of clocks, no timer or file that could wake the process while it must be
    stopped, no network."""
    (
        arch, refused, clone3, clone, kill, tgkill, socket, affinity, limits, fcntl, ioctl,
    ) = REFUSED[platform.machine()]  # fmt: skip
    if processes:
        refused = tuple(call for call in refused if call not in (57, 58, 59, 322, 221, 281))
    code: list[tuple[int, int, int, int]] = []

    def refuse(test: int, value: int, number: int) -> None:
        code.extend([(test, 0, 1, value), (RETURN, 0, 0, ERRNO | number)])

    def argument(call: int, test: int, *values: int, at: int = 0, but: bool = True) -> None:
        """Refuse a system call unless an argument has one of these values, or allow it only
        then."""
        ends = [(RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
        few = len(values)
        code.extend([
            (EQUAL, 0, few + 3, call), (LOAD, 0, 0, 16 + 8 * at),
            *[(test, few - i, 0, value) for i, value in enumerate(values)],
            *(ends if but else reversed(ends)),
        ])  # fmt: skip

    code += [(LOAD, 0, 0, 4), (EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL_PROCESS), (LOAD, 0, 0, 0)]
    refuse(AT_LEAST, 0x40000000, ENOSYS)  # the other numbering of the same calls (x32)
    for call in refused:
        refuse(EQUAL, call, EPERM)
    if not processes:
        refuse(EQUAL, clone3, ENOSYS)  # its flags are in memory; callers fall back to clone
        argument(clone, ANY_BIT, CLONE_THREAD)
        argument(kill, EQUAL, os.getpid())
        argument(tgkill, EQUAL, os.getpid())
    argument(socket, EQUAL, UNIX)
    argument(affinity, EQUAL, 0)  # its own process
    argument(limits, EQUAL, 0)
    for call, values in zip((fcntl, ioctl), OWNERS, strict=True):
        argument(call, EQUAL, *values, at=1, but=False)
    code.append((RETURN, 0, 0, ALLOW))
    text = b"".join(struct.pack("=HBBI", *line) for line in code)
    words = ctypes.create_string_buffer(text)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(words))
    _checked(libc.prctl(SET_SECCOMP, FILTER, program, 0, 0), "seccomp")


if __name__ == "__main__":  # how to confine it, and a program with its arguments
    for _ in confine(**json.loads(sys.argv[1])):
        pass
    os.execvp(sys.argv[2], sys.argv[2:])
