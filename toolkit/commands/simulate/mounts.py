"""A program that gives a host of `toolkit run` its own /opt/ml and then execs the host's `train`:

    python -I -S mounts.py BASE [SHARED...] COMMAND...   COMMAND sees BASE as /opt/ml
    python -I -S mounts.py BASE                          only tries; on failure prints the reason and exits with 1

SHARED is `--shared ro|rw SOURCE TARGET`: COMMAND sees the folder SOURCE at TARGET, an empty folder; with `ro` it cannot
write there. If the kernel does not allow it, TARGET becomes a link to SOURCE.

Goal: a script that writes to the literal /opt/ml/checkpoints writes into its own host's folder, as in a container.
Plan: a new mount namespace (for other users than root also a user namespace), in which BASE is bound to /opt/ml. The
pid stays the same, so signals, the exit status, /proc and the parent are as without it.

- In the user namespace a user keeps the own UID (it is mapped to itself), and so files, processes, /tmp and devices.
  Other UIDs are shown as 65534, and set-user-ID bits have no effect.
- New mounts of the machine appear in the namespace (MS_SLAVE). Mounts made here are invisible outside, and end with the
  host's last process.
- If the machine has no /opt/ml, none is made on its disk: a small tmpfs covers /opt, with bind mounts of all that /opt
  holds, and ml.
- `toolkit run` starts this file by its path without site-packages, so it imports only the standard library.
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
MS_RDONLY, MS_REMOUNT, MNT_DETACH = 1, 32, 2
# statvfs(3)'s flags, and mount(2)'s: nosuid, nodev, noexec, noatime, nodiratime, relatime.
KEPT = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def main(words: list[str]) -> None:
    """Enter the namespace and exec the command; without a command, exit with 1 if the namespace cannot be entered."""
    base, command = words[0], words[1:]
    shared = []
    while command[:1] == ["--shared"]:
        shared.append(command[1:4])
        command = command[4:]
    parent = os.getppid()
    try:
        unshare()
        mount("none", "/", "", MS_REC | MS_SLAVE)
        for access, source, target in shared:
            share(access, source, target)
        cover_and_bind(base)
    except OSError as error:
        for _, source, target in shared:
            link(source, target)
        if not command:
            sys.exit(f"{error.filename}: {error.strerror}")
        os.write(2, f"[toolkit] warning: no /opt/ml of its own: {error.filename}: {error.strerror}\n".encode())
    if not command:
        return
    # The user namespace's change of credentials may have cleared the death signal.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    os.execv(command[0], command)


def share(access: str, source: str, target: str) -> None:
    """Show the folder *source* at *target*, read-only if *access* is "ro"; make a link of *target* if that fails."""
    try:
        mount(source, target, "", MS_BIND | MS_REC)
        if access == "ro":
            for place in mounts_at(target):  # A remount is not recursive.
                mount("none", place, "", MS_BIND | MS_REMOUNT | MS_RDONLY | flags_of(place))
    except OSError as error:
        os.write(2, f"[toolkit] warning: {source} can be written to: {error.filename}: {error.strerror}\n".encode())
        LIBC.umount2(os.fsencode(target), MNT_DETACH)
        link(source, target)


def mounts_at(target: str) -> list[str]:
    """Return the mount points at and below *target* (proc_pid_mountinfo(5), field 5, in which \\040 is a blank)."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = {line.split()[4].decode("unicode_escape").encode("latin-1") for line in file}
    top = os.fsencode(os.path.realpath(target))
    return [os.fsdecode(point) for point in sorted(points) if point == top or point.startswith(top + b"/")]


def link(source: str, target: str) -> None:
    """Make *target*, an empty folder, a link to *source*, unless *source* is there already."""
    if not os.path.samefile(source, target):
        os.rmdir(target)
        os.symlink(source, target)


def flags_of(path: str) -> int:
    """Return the flags of the mount at *path*, which an unprivileged remount must keep."""
    mount_flags = os.statvfs(path).f_flag
    return sum(flag for bit, flag in KEPT.items() if mount_flags & bit)


def cover_and_bind(base: str) -> None:
    """Make *base* this process' /opt/ml.

    Raises:
        OSError: the kernel does not allow it; `filename` names the attempted step.
    """
    if not os.path.isdir(TARGET):
        cover(os.path.realpath(os.path.dirname(TARGET)))
    mount(base, TARGET, "", MS_BIND | MS_REC)
    if not os.path.samefile(base, TARGET):
        raise OSError(0, "it is another folder after it was bound", TARGET)


def unshare() -> None:
    """Enter a new mount namespace; for other users than root also a new user namespace, which permits the first."""
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
            pass  # Kernels before 3.19 have no setgroups.


def cover(folder: str) -> None:
    """Cover *folder* with a tmpfs that shows all of its content by bind mounts, and has an empty folder for TARGET."""
    original = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    names = os.listdir(folder)
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for name in names:
        source, place = f"/proc/self/fd/{original}/{name}", os.path.join(folder, name)
        mode = os.lstat(source).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(source), place)
            continue
        if stat.S_ISDIR(mode):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        mount(source, place, "", MS_BIND | MS_REC)
    os.close(original)
    os.mkdir(os.path.join(folder, os.path.basename(TARGET)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2)."""
    result = LIBC.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    checked(result, f"mounting on {target}")


def checked(result: int, attempt: str) -> None:
    """Raise OSError if *result* is a failed system call's; *attempt* becomes its filename."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), attempt)


if __name__ == "__main__":
    main(sys.argv[1:])
