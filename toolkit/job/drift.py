"""Pure: the differences between what ran in two jobs, by their manifests."""

from collections.abc import Iterator, Mapping, Sequence

from toolkit.job.documents import parameters, sagemaker_variables
from toolkit.job.manifest import SECRET, FileTree, Hardware, ManifestChannel, RunManifest
from toolkit.records import Record

# Variables that differ from run to run by their nature: names of jobs, places, ports, terminals.
OF_A_RUN = frozenset(
    [
        "TRAINING_JOB_NAME",
        "TRAINING_JOB_ARN",
        sagemaker_variables.BASE_DIR,
        parameters.JOB_NAME.upper(),
        "TOOLKIT_JOB",
        "TOOLKIT_IMAGE",
        "TOOLKIT_SOURCE_COMMIT",
        "TOOLKIT_HOST_ADDRESSES",
        "TOOLKIT_LOG_PROGRESS",
        "TOOLKIT_LOG_FAILURE",
        "TOOLKIT_RUN_ID",
        "TOOLKIT_TRACKER_RUN",
        "MASTER_ADDR",
        "MASTER_PORT",
        "HOSTNAME",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "TERM",
        "COLUMNS",
        "LINES",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_TTY",
        "XDG_SESSION_ID",
        "INVOCATION_ID",
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_STEP_ID",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_SRUN_COMM_PORT",
    ]
)
ABSENT = "-"


class Difference(Record, frozen=True, kw_only=True):
    """One thing that was not the same in two jobs."""

    part: str
    """The part of the manifest, in words: "package", "channel", "variable", ..."""
    name: str
    """Its name: numpy, training, OMP_NUM_THREADS."""
    first: str
    """The first job's, for people."""
    second: str
    """The second's."""
    hosts: tuple[str, ...] = ()
    """The hosts that it is of; () for all."""

    def __str__(self) -> str:
        place = f" (on {', '.join(self.hosts)})" if self.hosts else ""
        subject = f"{self.part} {self.name}".rstrip()
        return f"{subject}: {self.first} -> {self.second}{place}"


def compare_jobs(first: Mapping[str, RunManifest], second: Mapping[str, RunManifest]) -> tuple[Difference, ...]:
    """Return the differences between two jobs' manifests by host; one that all shared hosts have stands there once."""
    shared = [host for host in first if host in second]
    pairs = [(host, first[host], second[host]) for host in shared]
    if not pairs and first and second:
        pairs = [("", next(iter(first.values())), next(iter(second.values())))]
    hosts_of: dict[Difference, list[str]] = {}
    for host, one_manifest, other_manifest in pairs:
        for difference in compare_manifests(one_manifest, other_manifest):
            hosts_of.setdefault(difference, []).append(host)
    return tuple(
        difference
        if len(hosts) == len(pairs)
        else Difference(
            part=difference.part,
            name=difference.name,
            first=difference.first,
            second=difference.second,
            hosts=tuple(hosts),
        )
        for difference, hosts in hosts_of.items()
    )


def compare_manifests(first: RunManifest, second: RunManifest) -> Iterator[Difference]:
    """Yield the differences, those first that change the result of a training most."""
    yield from _compare_trees("source", "", first.source, second.source)
    if (first.source is None) == (second.source is None):
        yield from _compare_texts("commit", {"": first.source_commit}, {"": second.source_commit}, both=True)
    yield from _compare_texts("script", {"": first.script}, {"": second.script})
    yield from _compare_texts("hyperparameter", first.hyperparameters, second.hyperparameters)
    seeds = [
        {name: value for name, value in manifest.seeds.items() if name not in manifest.hyperparameters}
        for manifest in (first, second)
    ]
    yield from _compare_texts("seed", *seeds)
    yield from _compare_channels(first.channels, second.channels)
    layouts = [
        {
            "strategy": manifest.strategy,
            "hosts": str(manifest.hosts),
            "ranks on each host": str(manifest.processes_per_host),
        }
        for manifest in (first, second)
    ]
    yield from _compare_texts("distribution", *layouts)
    yield from _compare_texts("image", {"": first.image}, {"": second.image}, both=True)
    yield from _compare_texts("toolkit", {"": first.toolkit}, {"": second.toolkit})
    yield from _compare_texts("Python", {"": first.interpreter.version}, {"": second.interpreter.version})
    yield from _compare_packages(first, second)
    yield from _compare_hardware(first.hardware, second.hardware)
    yield from _compare_variables(first, second)


def _compare_texts(
    part: str, first: Mapping[str, str], second: Mapping[str, str], *, both: bool = False
) -> Iterator[Difference]:
    """Yield each name under which the two differ. *both*: only where both know a value."""
    for name in _merge(first, second):
        one_text, other_text = first.get(name, ""), second.get(name, "")
        if one_text != other_text and not (both and not (one_text and other_text)):
            yield Difference(part=part, name=name, first=one_text or ABSENT, second=other_text or ABSENT)


def _compare_trees(part: str, name: str, first: FileTree | None, second: FileTree | None) -> Iterator[Difference]:
    if first is None or second is None or first.digest == second.digest:
        return
    files = _list_changed(first.digests, second.digests) if first.digests and second.digests else ()
    if files:
        shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        name = f"{name}, {shown}" if name else shown
    texts = [f"{tree.files:,} files, {tree.bytes:,} bytes, {tree.digest[:8]}" for tree in (first, second)]
    if texts[0].rpartition(",")[0] == texts[1].rpartition(",")[0] and first.unread_files:
        texts[1] += f" (large files by size and time: {first.unread_files:,})"
    yield Difference(part=part, name=name, first=texts[0], second=texts[1])


def _list_changed(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in _merge(first, second) if first.get(name) != second.get(name))


def _compare_channels(
    first: Mapping[str, ManifestChannel], second: Mapping[str, ManifestChannel]
) -> Iterator[Difference]:
    modes = [{name: channel.mode for name, channel in channels.items()} for channels in (first, second)]
    yield from _compare_texts("channel", *modes)
    for name in first:
        if name in second:
            yield from _compare_trees("channel", name, first[name].tree, second[name].tree)


def _compare_packages(first: RunManifest, second: RunManifest) -> Iterator[Difference]:
    for name in _merge(first.packages, second.packages):
        texts = [manifest.packages.get(name, "") for manifest in (first, second)]
        if texts[0] == texts[1]:
            continue
        versions = [text.partition(" ")[0] for text in texts]
        if versions[0] == versions[1]:
            versions = [f"{text.partition(' ')[0]} (RECORD {text.partition(' ')[2][:8]})" for text in texts]
        yield Difference(part="package", name=name, first=versions[0] or ABSENT, second=versions[1] or ABSENT)


def _compare_hardware(first: Hardware, second: Hardware) -> Iterator[Difference]:
    texts = [
        {
            "architecture": machine.architecture,
            "CPU": machine.cpu,
            "cores": str(machine.cpus),
            "GPUs": _count_models(machine.gpus),
            "driver": machine.driver,
            "CUDA": machine.cuda,
            "NCCL": machine.nccl,
            "cuDNN": machine.cudnn,
            "kernel": machine.kernel,
            "system": machine.system,
            "C library": machine.libc,
        }
        for machine in (first, second)
    ]
    yield from _compare_texts("machine", *texts)


def _count_models(models: Sequence[str]) -> str:
    return ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))


def _compare_variables(first: RunManifest, second: RunManifest) -> Iterator[Difference]:
    for name in _merge(first.environment, second.environment):
        one_digest, other_digest = first.environment.get(name), second.environment.get(name)
        if one_digest == other_digest or name in OF_A_RUN or name in first.seeds or name in second.seeds:
            continue
        yield Difference(part="variable", name=name, first=_show(one_digest), second=_show(other_digest))


def _show(digest: str | None) -> str:
    return ABSENT if digest is None else "set to a secret" if digest == SECRET else f"a value with digest {digest[:8]}"


def _merge(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    return sorted({*first, *second})
