"""The first program of a job of SageMaker's SDK v3: puts the toolkit that the job has brought on the path, and becomes
its `train`.

ModelTrainer copies this folder into the channel sm_drivers. sm_train.sh, which is PID 1, becomes this program by
`exec`; so signals are blocked from the first line on, until `train` handles them: Linux drops a signal to a PID 1
without a handler, and keeps one that is blocked. The language is that of Python 3.4: an older interpreter must get as
far as the sentence about its age. What is imported counts: the job waits for it.
"""

import os
import signal
import stat
import sys

try:
    signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
    )
except OSError:
    pass  # A sandbox denies it: a stop in the next moment is lost, the job is not.

OLDEST = (3, 10)
PACKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "packs")
SUMS = "SHA256SUMS"
# Files are toolkit-VERSION.pack, toolkit-VERSION-sources.pack, toolkit-VERSION-cp311.pack (compiled modules),
# msgspec-VERSION-cp311.pack, msgspec-VERSION-cp311-x86_64.pack.
PREFIX, SUFFIX = "toolkit-", ".pack"
KEPT_SOURCES = "toolkit.sources"  # The name that toolkit/carried_modules.py reads.
CONFIG, TEMPFAIL = 78, 75  # EX_CONFIG and EX_TEMPFAIL of sysexits.h, as docs/exit-codes.md has them.


class StartError(Exception):
    """The job cannot start here; the text says what was expected, what was found and what to do."""

    def __init__(self, text: str, code: int = CONFIG) -> None:
        super().__init__(text)
        self.code = code


def main() -> None:
    """Become `train`, or end with one line and its code."""
    try:
        prepare()
    except StartError as error:
        report(str(error), error.code)
        sys.exit(error.code)
    sys.argv[:] = ["train"]  # The words behind are the script's: sourcecode.json has them.
    from toolkit.cli.start import train

    train()


def prepare() -> None:
    """Put the newer of the image's toolkit and the one that the job has brought on sys.path."""
    if sys.version_info < OLDEST:
        raise StartError(
            "expected Python 3.10 or newer as the image's python3, found %d.%d (%s). Use an image with a newer one"
            % (sys.version_info[0], sys.version_info[1], sys.executable)
        )
    sums = read_sums()
    toolkit_pack = next((name for name in sums if name.startswith(PREFIX) and name.count("-") == 1), "")
    if not toolkit_pack:
        raise StartError("%s: expected toolkit-VERSION.pack, found none. Build the distribution again" % PACKS)
    brought_version = toolkit_pack[len(PREFIX) : -len(SUFFIX)]
    tag = "cp%d%d" % sys.version_info[:2]
    driver = os.path.dirname(PACKS)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != driver]  # It holds modules of the SDK, too.
    path, image_version = find_toolkit()
    versions = (brought_version, image_version)
    needs_msgspec = not is_installed("msgspec")
    if image_version and numbers(image_version) >= numbers(brought_version) and not needs_msgspec:
        if image_version != brought_version:
            say("the image's container-training-toolkit %s runs: the job has brought %s" % versions[::-1])
        return
    if image_version:
        say("container-training-toolkit %s runs, which the job has brought: the image has %s" % versions)
    packs = [toolkit_pack]
    if needs_msgspec:
        library = choose_msgspec(sums, tag)
        packs += [library[: library.rindex("-")] + SUFFIX, library]
    compiled = "%s-%s%s" % (toolkit_pack[: -len(SUFFIX)], tag, SUFFIX)
    sources = "%s-sources%s" % (toolkit_pack[: -len(SUFFIX)], SUFFIX)
    if compiled in sums and sys.implementation.name == "cpython":
        folder = unpack_all([*packs, compiled], sums, sources)
    else:
        folder = unpack_all([*packs, sources], sums)
    sys.path.insert(0, folder)
    if image_version or not path:  # Else a package of this name is the user's: scripts import that one.
        entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        entries.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(entries)


def read_sums() -> "dict[str, str]":
    """Return the SHA-256 of each pack by its name."""
    path = os.path.join(PACKS, SUMS)
    sums = {}
    try:
        with open(path) as file:
            for line in file:
                digest, name = line.split()
                sums[name] = digest
    except (OSError, ValueError) as error:
        raise StartError("%s: cannot be read (%s). Send the job again" % (path, error)) from None
    return sums


def find_toolkit() -> "tuple[str, str]":
    """Return where the image's package `toolkit` is and its version; "", "" if there is none, a path and "" if it is
    another package, or a damaged one."""
    for folder in sys.path:
        path = os.path.join(folder, "toolkit")
        if os.path.exists(path + ".py"):
            return path + ".py", ""
        if not os.path.isdir(path):
            continue
        if not os.path.exists(os.path.join(path, "exit_codes.py")):
            return path, ""
        try:
            with open(os.path.join(path, "__init__.py")) as file:
                for line in file:
                    if line.startswith('__version__ = "'):
                        return path, line.split('"')[1]
        except (OSError, ValueError):
            pass
        return path, ""
    return "", ""


def is_installed(name: str) -> bool:
    """True if the image's own site-packages have *name*: the toolkit's other processes look there alone."""
    import site

    return any(os.path.isdir(os.path.join(folder, name)) for folder in site.getsitepackages())


def numbers(version: str) -> "tuple[int, ...]":
    """Return 1.2.3 as numbers; what stands behind them, as in 1.2.3rc1, does not count."""
    parts = []
    for part in version.split(".")[:3]:
        length = 0
        while part[length : length + 1].isdigit():
            length += 1
        parts.append(int(part[:length] or "0"))
    return tuple(parts)


def choose_msgspec(sums: "dict[str, str]", tag: str) -> str:
    """Return the name of the pack of msgspec for this interpreter and processor."""
    machine, platform = os.uname()[4], getattr(sys.implementation, "_multiarch", "")
    if sys.implementation.name == "cpython" and not sys.abiflags and not platform.endswith("musl"):
        for name in sums:
            if name.startswith("msgspec-") and name.endswith("-%s-%s%s" % (tag, machine, SUFFIX)):
                return name
    interpreter = "%s %d.%d%s" % (sys.implementation.name, sys.version_info[0], sys.version_info[1], sys.abiflags)
    raise StartError(
        "expected CPython 3.10 to 3.14 on x86_64 or aarch64 with glibc, for which the job has brought msgspec, found"
        " %s (%s). Install msgspec in the image (pip install msgspec), or use another image"
        % (interpreter, platform or machine)
    )


def unpack_all(packs: "list[str]", sums: "dict[str, str]", kept: str = "") -> str:
    """Return the folder in which *packs* are unpacked: one of this container, which a second start finds again.

    The pack *kept* lies in it as it is.
    A script that empties /tmp by `rm -rf /tmp/*` leaves it alone, as its name begins with a dot.
    """
    name = ".toolkit-%d-%s" % (os.getuid(), "-".join(sums[pack][:8] for pack in packs + [kept] if pack))
    holds_library = any(pack.startswith("msgspec-") for pack in packs)
    chosen = os.environ.get("TMPDIR", "")
    contents = {}  # type: dict[str, bytes]
    refusals = []
    for base in ([os.path.abspath(chosen)] if chosen else []) + ["/tmp", "/var/tmp", PACKS]:
        folder = os.path.join(base, name)
        if is_own_folder(folder):
            return folder
        contents = contents or {pack: read(os.path.join(PACKS, pack), sums[pack]) for pack in packs + [kept] if pack}
        # Of this process alone: several hosts may share TMPDIR, and `train` is PID 1 on each.
        unfinished = folder + "." + os.urandom(6).hex()
        try:
            os.makedirs(base, exist_ok=True)
            if holds_library and os.statvfs(base).f_flag & os.ST_NOEXEC:
                refusals.append("%s (mounted with noexec)" % base)
                continue
            os.mkdir(unfinished, 0o755)
            for pack, content in contents.items():
                if pack == kept:
                    write(unfinished + "/" + KEPT_SOURCES, memoryview(content))
                else:
                    unpack(content, unfinished)
            os.rename(unfinished, folder)
            return folder
        except OSError as error:
            remove(unfinished)
            if is_own_folder(folder):
                return folder  # Another host was faster.
            refusals.append("%s (%s)" % (base, error.strerror or error))
    raise StartError(
        "expected a folder with 5 MB to unpack the toolkit into, found none: %s. Set TMPDIR to one"
        % ", ".join(refusals),
        TEMPFAIL,
    )


def is_own_folder(path: str) -> bool:
    """True if *path* is a folder, and no link, that this user has made."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def remove(folder: str) -> None:
    """Remove *folder*, so that what did not fit takes no room."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def read(pack: str, digest: str) -> bytes:
    """Return the content of *pack*, which must be the one that was built."""
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]  # hashlib loads OpenSSL first, which takes 4 ms.
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found]  # Before Python 3.12.
        except ImportError:
            from hashlib import sha256
    try:
        with open(pack, "rb") as file:
            content = file.read()
    except OSError as error:
        code = CONFIG if isinstance(error, FileNotFoundError) else TEMPFAIL
        raise StartError("%s: cannot be read (%s). Send the job again" % (pack, error.strerror), code) from None
    actual_digest = sha256(content).hexdigest()
    if actual_digest != digest:
        raise StartError(
            "%s: expected the SHA-256 %s, found %s: the file was damaged on its way. Send the job again"
            % (pack, digest, actual_digest)
        )
    return content


def unpack(content: bytes, folder: str) -> None:
    """Write the files of the pack *content* below *folder* (scripts/carried-packs)."""
    import zlib

    everything = zlib.decompress(content, bufsize=5 * len(content))
    head_ends = everything.index(b"\n\n")
    rest = memoryview(everything)[head_ends + 2 :]
    made = {folder}
    for line in everything[:head_ends].decode().split("\n"):
        size, _, name = line.partition(" ")
        target = folder + "/" + name
        make_parents(target, made)
        write(target, rest[: int(size)])
        rest = rest[int(size) :]


def write(path: str, content: memoryview) -> None:
    """Write the file *path*."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def make_parents(path: str, made: "set[str]") -> None:
    """Make the folders above *path* that are not in *made*, which nobody else may write, whatever the umask."""
    parent = path.rpartition("/")[0]
    if parent in made:
        return
    make_parents(parent, made)
    made.add(parent)
    try:
        os.mkdir(parent, 0o755)
    except FileExistsError:
        pass  # By another pack.


def say(text: str) -> None:
    sys.stderr.write("[toolkit] %s\n" % text)
    sys.stderr.flush()


def report(text: str, code: int) -> None:
    """Say *text* in the log, and as the failure that SageMaker shows."""
    say("error: " + text)
    kind = "ClientError" if code == CONFIG else "PlatformError"
    output = os.path.join(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml", "output")
    try:
        os.makedirs(output, exist_ok=True)
        with open(os.path.join(output, "failure"), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write('%s:\nExitCode %d\nErrorMessage "%s"\n' % (kind, code, text))
    except OSError as error:
        say("error: %s/failure: cannot be written (%s)" % (output, error))


if __name__ == "__main__":
    main()
