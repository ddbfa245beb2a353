"""Makes each host's folders as the platform makes them before it starts the containers.

JOBDIR/.toolkit-job                 marks the folder as a job's and says who runs it; locked while the job runs
JOBDIR/source/sourcedir.tar.gz      the submitted source: a copy of the source folder at the start
JOBDIR/hosts/algo-N/opt/ml/         one host's /opt/ml (SAGEMAKER_BASE_DIR, and mounted there)
JOBDIR/hosts/algo-N/channels/       what its FastFile channels lead through
JOBDIR/hosts/algo-N/python/         its own interpreter, only if `train` may install packages
JOBDIR/channels/NAME/               what a channel has fetched from storage (remote.py)
JOBDIR/interrupted/N/               an earlier start, which a spot interruption ended (spot.py)
JOBDIR/request.json                 the job as it was asked for, a job file (request.py)
JOBDIR/logs/  model.tar.gz  ...     the results (collect.py)
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit import folders
from toolkit.commands.jobs import secrets
from toolkit.commands.jobs.folders import RUN_MARK
from toolkit.commands.simulate import containers
from toolkit.commands.simulate.documents import BASE, HostSetup, documents, environment, region_of
from toolkit.commands.simulate.feed import Feed
from toolkit.commands.simulate.request import REQUEST
from toolkit.commands.simulate.reserve import PARTS
from toolkit.commands.simulate.source import VANISHED, describe, pack
from toolkit.errors import ContractError, PlatformError, ToolkitError, explain_path_error
from toolkit.job.channel import Channel
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log
from toolkit.records import Record
from toolkit.train.source.files import kind_of

PORTS = range(20_001, 32_000, 2)
RESULTS = (
    "hosts",
    "logs",
    "source",
    "channels",
    "model.tar.gz",
    "output.tar.gz",
    "metrics.jsonl",
    "job.json",
    REQUEST,
    "console.log",
    "interrupted",
    *PARTS,
)
SHOWN = 5
VIEWS = "channels"
MOST_VIEWS = 256  # A mount of a host for each folder; links to more folders than these lead there directly.
Files = list[tuple[str, Path]]  # (name in the channel, file)
Submitted = Mapping[str, Files]  # The files of each channel.
INSTALLED_FROM = ("requirements.txt", "setup.py", "pyproject.toml")


class SharedFolder(Record, frozen=True, kw_only=True):
    """A file system's folder that a host has at `target` as it is, not copied."""

    target: Path
    source: Path
    writable: bool


class StagedHost(Record, frozen=True, kw_only=True):
    """One host, ready to start."""

    setup: HostSetup  # Its place on this machine.
    enter: tuple[str, ...] = ()  # The start of the command line, before argv (opt_ml.py).
    argv: tuple[str, ...]  # The command of `train`, or of the container.
    environ: dict[str, str]  # The environment of this command.
    log: Path  # The file for its output.
    feeds: tuple[Feed, ...] = ()  # Its Pipe channels.
    shared: tuple[SharedFolder, ...] = ()  # Folders that it has without a copy.
    container: str = ""  # The container's name, "" for a process.


def claim(job_dir: Path) -> int:
    """Lock *job_dir* for this job and return the lock's file descriptor. What an earlier job left stays (earlier.py).

    Raises:
        ContractError: the folder holds other files, or a job that is still running.
    """
    mark = job_dir / RUN_MARK
    try:
        if folders.exists(job_dir) and not folders.exists(mark) and folders.names(job_dir):
            hint = "Give an empty or new folder."
            raise ContractError(
                "expected the folder of an earlier job, found other files", where=str(job_dir), hint=hint
            )
        job_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise (explain_path_error(error, "the job's folder cannot be made") or error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ContractError("a job is running there", where=str(job_dir), hint="Give another --job-dir.") from None
    return lock


def stage(
    job_file: JobFile, user_environ: Mapping[str, str], log: Log, *, only: Sequence[str] | None = None
) -> tuple[StagedHost, ...]:
    """Write the files that each host needs at its start, and warn of what is left out of the source and the channels.

    *user_environ*: the person's environment. *only*: the hosts to prepare, None for all.

    Raises:
        PlatformError: a file cannot be read or written.
    """
    return stage_hosts(job_file, user_environ, submit(job_file, log), log, only=only)


def submit(job_file: JobFile, log: Log) -> Submitted:
    """Pack the source and list the channels' files: what every start of the job gets.

    Raises:
        PlatformError: a file cannot be read or written.
    """
    archive = job_file.run.job_dir / "source" / "sourcedir.tar.gz"
    try:
        _say_left_out("the source", job_file.source, pack(job_file, archive, log), log)
        job_dir, channels = job_file.run.job_dir, job_file.channels
        return {
            channel.name: [] if channel.file_system else _present_files(channel, job_dir, log) for channel in channels
        }
    except OSError as error:
        raise _unprepared(error, job_file) from None


def stage_hosts(
    job_file: JobFile,
    user_environ: Mapping[str, str],
    content: Submitted,
    log: Log,
    *,
    only: Sequence[str] | None = None,
) -> tuple[StagedHost, ...]:
    """Make the folders of one start of the job; *content*: from `submit`.

    Raises:
        PlatformError: a file cannot be read or written.
    """
    submitted = job_file.run.job_dir / "source" / "sourcedir.tar.gz"
    contained = job_file.run.backend == "docker"
    # TensorFlow's servers, two for each host, use the ports from the rendezvous port on.
    port, cpus = free_port(2 * len(job_file.hosts)), len(os.sched_getaffinity(0))
    places = (
        HostSetup(
            host=host,
            base=job_file.run.job_dir / "hosts" / host / "opt" / "ml",
            submitted=BASE / "input" / submitted.name if contained else submitted,
            port=port,
            cpus=cpus,
            contained=contained,
        )
        for host in (job_file.hosts if only is None else only)
    )
    try:
        (job_file.run.job_dir / "logs").mkdir()
        (job_file.run.job_dir / "hosts").mkdir(mode=0o700)  # Containers still see what is mounted, as any user.
        if job_file.checkpoints:
            job_file.checkpoints.mkdir(parents=True, exist_ok=True)
        staged = tuple(stage_host(job_file, setup, user_environ, content, log) for setup in places)
        hidden = Log()
        hidden.hide({**user_environ, **job_file.environment})
        for host in staged:
            secrets.write(host.setup.base.parents[1], hidden)
        return staged
    except OSError as error:
        raise _unprepared(error, job_file) from None


def _unprepared(error: OSError, job_file: JobFile) -> ToolkitError:
    known_error = explain_path_error(error, "the job cannot be prepared with it")
    return known_error or PlatformError(f"cannot prepare the job: {error}", where=str(job_file.run.job_dir))


def stage_host(
    job_file: JobFile, setup: HostSetup, user_environ: Mapping[str, str], content: Mapping[str, Files], log: Log
) -> StagedHost:
    """Write *setup*'s documents, and its share of each channel's *content*."""
    region = region_of(user_environ)
    write_documents(job_file, setup, region)
    data = setup.base / "input" / "data"
    data.mkdir()
    mounts = []
    if job_file.checkpoints and setup.contained:
        (setup.base / "checkpoints").mkdir()  # Else the engine makes the mount point, and it is root's.
        mounts.append(f"{job_file.checkpoints}:{setup.inside / 'checkpoints'}")
    elif job_file.checkpoints:
        (setup.base / "checkpoints").symlink_to(job_file.checkpoints, target_is_directory=True)
    feeds, shared = [], []
    for channel in job_file.channels:
        if channel.file_system:
            shared.append(_share_folder(channel, data / channel.name, setup, mounts))
            continue
        files = host_share(job_file, channel, setup.host, content[channel.name])
        if channel.mode == "Pipe":
            feeds.append(Feed(fifo=data / channel.name, files=tuple(path for _, path in files)))
        elif channel.mode == "File":
            missing = dict.fromkeys(copy_files(data / channel.name, files), VANISHED)
            _say_left_out(f"channel {channel.name} of {setup.host}", channel.folder, missing, log)
        elif setup.contained:
            link_files(data / channel.name, [(name, path.resolve()) for name, path in files])
            mounts += [f"{folder}:{folder}:ro" for folder in linked_folders(channel, files)]
            inside = setup.inside / "input" / "data" / channel.name
            mounts.append(f"{data / channel.name}:{inside}:ro")
        else:
            shared += _view(channel, files, data / channel.name, setup.base.parents[1] / VIEWS / channel.name)
    environ = environment(job_file, setup, user_environ, region)
    if setup.contained:
        return _contained(job_file, setup, user_environ, environ, mounts, tuple(feeds))
    interpreter = sys.executable if job_file.run.interpreter is None else str(job_file.run.interpreter)
    if job_file.run.interpreter is not None:
        environ["PATH"] = os.pathsep.join([str(Path(interpreter).parent), environ.get("PATH", os.defpath)])
    elif installs(job_file):
        interpreter = own_interpreter(setup.base.parents[1] / "python")
        environ["PATH"] = os.pathsep.join([str(Path(interpreter).parent), environ.get("PATH", os.defpath)])
    return StagedHost(
        setup=setup,
        argv=(interpreter, "-m", "toolkit.cli.main", "train"),
        environ=environ,
        log=job_file.run.job_dir / "logs" / f"{setup.host}.log",
        feeds=tuple(feeds),
        shared=tuple(shared),
    )


def write_documents(job_file: JobFile, setup: HostSetup, region: str) -> None:
    """Make *setup*'s input/config, with its documents."""
    config = setup.base / "input" / "config"
    config.mkdir(parents=True)
    for name, document in documents(job_file, setup, region).items():
        (config / name).write_text(json.dumps(document))


def _view(channel: Channel, files: Files, target: Path, folder: Path) -> list[SharedFolder]:
    """Make *target*, a FastFile channel of a host that is a process, a folder of links that all lead through *folder*
    to the person's folders. Both are shared read-only: what is opened through them cannot be changed."""
    views = linked_folders(channel, files)[:MOST_VIEWS]
    links = []
    for name, path in files:
        resolved = path.resolve()
        number = next((number for number, view in enumerate(views) if resolved.is_relative_to(view)), None)
        through = resolved if number is None else folder / str(number) / resolved.relative_to(views[number])
        links.append((name, through))
    link_files(folder / "links", links)
    shared = [SharedFolder(target=target, source=folder / "links", writable=False)]
    shared += [
        SharedFolder(target=folder / str(number), source=view, writable=False) for number, view in enumerate(views)
    ]
    for folder_share in shared:
        folder_share.target.symlink_to(
            folder_share.source, target_is_directory=True
        )  # Until opt_ml.py makes it a mount.
    return shared


def _share_folder(channel: Channel, target: Path, setup: HostSetup, mounts: list[str]) -> SharedFolder:
    """Make *channel*'s folder the host's: a container mounts it. Else *target* is a link, which opt_ml.py makes a mount
    where it can."""
    source = channel.folder.resolve()
    if setup.contained:
        target.mkdir()
        mounts.append(f"{source}:{setup.inside / 'input' / 'data' / channel.name}:{channel.file_system}")
    else:
        target.symlink_to(source, target_is_directory=True)
    return SharedFolder(target=target, source=source, writable=channel.file_system == "rw")


def _contained(
    job_file: JobFile,
    setup: HostSetup,
    user_environ: Mapping[str, str],
    environ: Mapping[str, str],
    mounts: list[str],
    feeds: tuple[Feed, ...],
) -> StagedHost:
    (setup.base / "input" / setup.submitted.name).hardlink_to(job_file.run.job_dir / "source" / setup.submitted.name)
    setup.base.chmod(0o777)  # The image's user must be able to write to /opt/ml.
    hosts = job_file.hosts
    gpus = containers.gpus_for(hosts.index(setup.host), len(hosts), containers.gpu_count())
    return StagedHost(
        setup=setup,
        argv=containers.argv(job_file, setup, environ, mounts, gpus=gpus, user=containers.container_user()),
        environ=dict(user_environ),
        log=job_file.run.job_dir / "logs" / f"{setup.host}.log",
        feeds=feeds,
        container=containers.name_of(job_file, setup.host),
    )


def linked_folders(channel: Channel, files: Files) -> list[Path]:
    """Return the folders of the links' targets: a container must have them at the same paths."""
    top = channel.folder.resolve() if folders.is_dir(channel.folder) else channel.folder.resolve().parent
    targets = {path.resolve() for _, path in files}
    return sorted({top} | {target.parent for target in targets if not target.is_relative_to(top)})


def host_share(job_file: JobFile, channel: Channel, host: str, files: Files) -> Files:
    """Return the part of *channel*'s *files* that *host* gets."""
    if not channel.sharded:
        return files
    hosts = job_file.hosts
    return files[hosts.index(host) :: len(hosts)]


def channel_files(channel: Channel, left_out: dict[str, str], job_dir: Path | None = None) -> Files:
    """Return all files of *channel*, sorted by name; what is no file or cannot be read goes to *left_out*, with the
    reason, and so do *job_dir*, which would be copied into itself, and the folders of other jobs, unless the channel is
    the folder of jobs itself. A link to a folder is followed, as an upload to S3 follows it, but not round a loop."""
    top = channel.folder
    if folders.is_file(top):
        return [(top.name, top)]

    def unreadable(error: OSError) -> None:
        left_out.setdefault(os.path.relpath(error.filename, top), describe(error))

    own_status = None if job_dir is None else folders.status(job_dir)

    is_of_jobs = job_dir is None or job_dir.parent.resolve() == top.resolve()

    def enter(entry: os.DirEntry[str]) -> bool:
        reason = ""
        if own_status is not None and os.path.samestat(entry.stat(), own_status):
            reason = "this job's own folder"
        elif not is_of_jobs and folders.is_file(Path(entry.path, RUN_MARK), lambda _: None):
            reason = "the folder of another job"
        if reason:
            left_out[os.path.relpath(entry.path, top)] = reason
        return not reason

    files = []
    for entry in folders.walk(top, unreadable, enter=enter, follow_links=True):
        path = Path(entry.path)
        name, kind = path.relative_to(top).as_posix(), kind_of(path)
        if kind == "a file" and os.access(path, os.R_OK, effective_ids=True):
            files.append((name, path))
        elif kind != "a folder":
            left_out[name] = kind if kind != "a file" else "a file that cannot be read"
    return sorted(files)


def _present_files(channel: Channel, job_dir: Path, log: Log) -> Files:
    left_out: dict[str, str] = {}
    files = channel_files(channel, left_out, job_dir)
    _say_left_out(f"channel {channel.name}", channel.folder, left_out, log)
    return files


def _say_left_out(subject: str, folder: Path, left_out: Mapping[str, str], log: Log) -> None:
    if left_out:
        listed = "; ".join(f"{name} is {reason}" for name, reason in list(left_out.items())[:SHOWN])
        unlisted = f"; and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else ""
        log.warning(f"left out of {subject} {folder}: {listed}{unlisted}")


def copy_files(folder: Path, files: Files) -> list[str]:
    """Put copies of *files* below *folder*, like a download: a job may change them without changing the person's.
    Return the names of those that are gone by now.

    Raises:
        FileNotFoundError: all of them are.
    """
    folder.mkdir(parents=True)
    missing: list[str] = []
    for name, path in files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(path, target)
        except FileNotFoundError:
            missing.append(name)
            if len(missing) == len(files):
                raise
    return missing


def link_files(folder: Path, links: Files) -> None:
    """Make *links*, (name, target), below *folder*. Its folders are read-only except for root."""
    folder.mkdir(parents=True)
    for name, path in links:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    _set_folder_modes(folder, 0o555)


def remove(path: Path) -> None:
    """Remove a file or a folder, even if it contains folders that are unreadable or read-only."""
    folders.remove(path)


def make_writable(staged: StagedHost) -> None:
    """Make the folders of FastFile channels writable again, so that a person can remove them."""
    _set_folder_modes(staged.setup.base / "input" / "data", 0o755)
    _set_folder_modes(staged.setup.base.parents[1] / VIEWS, 0o755)


def installs(job_file: JobFile) -> bool:
    """True if `train` may have packages to install for this source."""
    return bool(job_file.requirements) or any(folders.exists(job_file.source / name) for name in INSTALLED_FROM)


def own_interpreter(folder: Path) -> str:
    """Make a virtual environment in *folder* that sees all packages of this one, and return its interpreter.

    On the platform each container has its own Python. Here a job must not change the person's environment, and two
    hosts must not write to one environment at once.
    """
    import venv

    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    library = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site_folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    site_folders.append(str(Path(__file__).parents[3]))  # The toolkit itself if it runs from a checkout.
    lines = [f"import site; site.addsitedir({path!r})" for path in site_folders]
    (library / "outer.pth").write_text("\n".join(lines) + "\n")
    return str(folder / "bin" / "python")


def free_port(count: int = 1) -> int:
    """Return a free rendezvous port; the *count* - 1 ports above it and the port below it (the link's) are free, too.

    It is below the kernel's range for outgoing connections (ip_local_port_range, from 32768 on): one of those could
    take it at any time.
    """
    for port in random.sample(PORTS, len(PORTS)):
        if all(_is_free(candidate) for candidate in range(port - 1, port + count)):
            return port
    raise PlatformError(f"expected {count + 1} free ports side by side from {PORTS.start} to {PORTS.stop}, found none")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _set_folder_modes(top: Path, mode: int) -> None:
    """Set the mode of *top* and of all folders below it, before each is listed if the mode lets us list it. A folder of
    another user, which a script may have made, stays as it is."""
    if not folders.is_dir(top, folders.as_absent, follow_links=False):
        return
    opens = mode & 0o200 != 0
    below = [top]

    def enter(entry: os.DirEntry[str]) -> bool:
        below.append(Path(entry.path))
        if opens:
            _set_mode(below[-1], mode)
        return True

    if opens:
        _set_mode(top, mode)
    for _ in folders.walk(top, lambda _: None, enter=enter):
        pass  # The walk itself calls `enter`.
    for folder in reversed([] if opens else below):
        _set_mode(folder, mode)


def _set_mode(folder: Path, mode: int) -> None:
    with contextlib.suppress(OSError):
        folder.chmod(mode)
