"""Runs a program under a seccomp filter: python denied.py NAME[,NAME...] COMMAND...: those system calls fail (EPERM).

As container engines and sandboxes deny them. The filter is inherited by everything that the program starts.
"""

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K of linux/bpf_common.h.
ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
NUMBERS: dict[str, dict[str, int]] = {
    # asm/unistd_64.h; asm-generic/unistd.h has no poll.
    "x86_64": {
        "poll": 7,
        "rt_sigprocmask": 14,
        "setitimer": 38,
        "uname": 63,
        "sched_getaffinity": 204,
        "waitid": 247,
        "ppoll": 271,
        "pipe2": 293,
        "prlimit64": 302,
        "getrlimit": 97,
        "flock": 73,
    },
    "aarch64": {
        "flock": 32,
        "pipe2": 59,
        "ppoll": 73,
        "waitid": 95,
        "setitimer": 103,
        "sched_getaffinity": 123,
        "rt_sigprocmask": 135,
        "uname": 160,
        "getrlimit": 163,
        "prlimit64": 261,
    },
}


def deny(names: list[str]) -> None:
    """Let the system calls *names* fail from now on, in this process and all that it starts."""
    numbers = NUMBERS[os.uname().machine]
    program = struct.pack("HBBI", LOAD, 0, 0, 0)  # The number of the call.
    for number in (numbers[name] for name in names if name in numbers):
        program += struct.pack("HBBI", EQUALS, 0, 1, number) + struct.pack("HBBI", RETURN, 0, 0, ERRNO | errno.EPERM)
    program += struct.pack("HBBI", RETURN, 0, 0, ALLOW)
    content = ctypes.create_string_buffer(program)
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(content)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter_))):
        if prctl(*words, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "seccomp filters cannot be installed here")


if __name__ == "__main__":
    deny(sys.argv[1].split(","))
    os.execv(sys.argv[2], sys.argv[2:])
