"""A program that gives a host of `toolkit run` an /opt/ml of its own and then becomes its `train`:

    python -I -S mounts.py BASE COMMAND...    COMMAND sees BASE as /opt/ml
    python -I -S mounts.py BASE               only tries; prints why it cannot be, ends with 1

Goal: a script that writes to the literal /opt/ml/checkpoints writes into its own host's folder, as in a container.
Plan: a mount namespace of its own (root), or one within a user namespace (everybody else), and in it BASE bound to
/opt/ml. The pid stays, so signals, the exit status, /proc and the parent are as without it.

- In the user namespace a user keeps the own number (it is mapped to itself), and with it files, processes, /tmp and
  devices; other numbers are shown as 65534, and programs with the set-user-ID bit have no effect.
- Mounts of the machine still arrive (MS_SLAVE); nothing that is mounted here can be seen outside, and it ends with the
  last process of the host.
- Where the machine has no /opt/ml, none is made: /opt is covered by a small file system in memory that holds all that
  /opt holds, bound, and ml besides.
- It is run by its path, without site-packages: it imports the standard library alone.
"""

import ctypes
import os
import signal
import stat
import sys

TARGET = "/opt/ml"
# linux/mount.h, linux/sched.h, linux/prctl.h
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
MS_NOSUID, MS_NODEV = 2, 4
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def main(words: list[str]) -> None:
    """Enter the namespace and become the command; where it is only tried, end with 1 if it cannot be."""
    base, command = words[0], words[1:]
    parent = os.getppid()
    try:
        enter(base)
    except OSError as error:
        if not command:
            sys.exit(f"{error.filename}: {error.strerror}")
        os.write(2, f"[toolkit] warning: no /opt/ml of its own: {error.filename}: {error.strerror}\n".encode())
    if not command:
        return
    # A change of credentials may have cleared it.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    os.execv(command[0], command)


def enter(base: str) -> None:
    """Make *base* this process' /opt/ml.

    Raises:
        OSError: the kernel does not allow it; `filename` says what was tried.
    """
    unshare()
    mount("none", "/", "", MS_REC | MS_SLAVE)
    if not os.path.isdir(TARGET):
        cover(os.path.realpath(os.path.dirname(TARGET)))
    mount(base, TARGET, "", MS_BIND | MS_REC)
    if not os.path.samefile(base, TARGET):
        raise OSError(0, "it is another folder after it was bound", TARGET)


def unshare() -> None:
    """Leave the machine's mount namespace; who is not root leaves its user namespace as well, to be allowed to."""
    if os.geteuid() == 0:
        checked(LIBC.unshare(CLONE_NEWNS), "a mount namespace")
        return
    user, group = os.geteuid(), os.getegid()
    checked(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS), "a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except FileNotFoundError:
            pass  # setgroups: a kernel before 3.19.


def cover(folder: str) -> None:
    """Cover *folder* by a file system in memory that holds all that it holds, and the target's own name."""
    before = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    names = os.listdir(folder)
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for name in names:
        source, place = f"/proc/self/fd/{before}/{name}", os.path.join(folder, name)
        mode = os.lstat(source).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(source), place)
            continue
        if stat.S_ISDIR(mode):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        mount(source, place, "", MS_BIND | MS_REC)
    os.close(before)
    os.mkdir(os.path.join(folder, os.path.basename(TARGET)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    result = LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    checked(result, f"mounting on {target}")


def checked(result: int, what: str) -> None:
    """Raise the OSError of a system call that failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    main(sys.argv[1:])
