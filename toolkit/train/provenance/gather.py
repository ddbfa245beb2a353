"""Makes the manifest of this host's job."""

import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec.structs import replace

import toolkit
from toolkit import files, folders
from toolkit.job.channel import Channel
from toolkit.job.job import Job
from toolkit.job.manifest import SECRET, FileTree, Interpreter, ManifestChannel, RunManifest
from toolkit.records import encode
from toolkit.train.provenance.commit import find_commit
from toolkit.train.provenance.hardware import describe_hardware
from toolkit.train.provenance.installed import list_packages, search_path_of
from toolkit.train.provenance.trees import digest_tree
from toolkit.train.provenance.variables import digest_variables, find_seeds, show_hyperparameters

MOST_BYTES = 30_000
NO_FILES = "source, commit and channels: their files had not all answered when the job ended"


def gather_manifest(job: Job, mask: Callable[[str], str]) -> RunManifest:
    """Return the manifest of *job*, whose script and packages are in place, without the digests of its files, which may
    answer late or never (`with_files`). *mask* masks secrets in a text."""
    assert job.script is not None
    left_out: list[str] = []
    hyperparameters = show_hyperparameters(job.spec.hyperparameters, mask)
    python_path = job.environ.get("PYTHONPATH", "")
    search_path = search_path_of(job.interpreter, sys.path, sys.executable, python_path)
    packages, places = list_packages(search_path)
    channels = {
        channel.name: ManifestChannel(mode=channel.mode, sharded=channel.sharded, uri=mask(channel.uri))
        for channel in job.spec.channels
    }
    return RunManifest(
        toolkit=toolkit.__version__,
        job=job.spec.name,
        host=job.cluster.current,
        hosts=len(job.cluster.hosts),
        script=job.script.entry,
        strategy=job.strategy.name,
        processes_per_host=job.processes_per_host,
        hyperparameters=hyperparameters,
        seeds=find_seeds(hyperparameters, job.environ),
        image=mask(job.settings.image),
        source_commit=job.settings.source_commit,
        channels=channels,
        documents=_digest_documents(job.folders.config, SECRET in hyperparameters.values(), mask, left_out),
        interpreter=describe_interpreter(job.interpreter),
        packages=packages,
        package_places={name: mask(place) for name, place in places.items()},
        hardware=describe_hardware(job.machine, packages, job.environ),
        environment=digest_variables(job.environ, mask),
        left_out=tuple(left_out),
    )


def note_missing_files(manifest: RunManifest) -> RunManifest:
    """Return *manifest*, which says that the digests of files are missing."""
    return replace(manifest, left_out=(*manifest.left_out, NO_FILES))


def with_files(manifest: RunManifest, job: Job) -> RunManifest:
    """Return *manifest* with the digests of the files of *job*, and the commit of its source."""
    assert job.script is not None
    left_out = list(manifest.left_out)
    source = job.script.folder
    return replace(
        manifest,
        source=_digest("source", source, left_out),
        source_commit=manifest.source_commit or find_commit(source, job.environ),
        channels={
            channel.name: replace(manifest.channels[channel.name], tree=_digest_channel(channel, left_out))
            for channel in job.spec.channels
        },
        left_out=tuple(left_out),
    )


def describe_interpreter(path: str) -> Interpreter:
    """Return the interpreter *path*; one that does not run this process has its version from its folder's name."""
    if path == sys.executable:
        version = ".".join(map(str, sys.version_info[:3]))
        return Interpreter(path=path, version=version, implementation=sys.implementation.name)
    pythons = folders.matching(Path(path).parent.parent / "lib", "python3*", folders.as_absent)
    version = pythons[0].name.removeprefix("python") if len(pythons) == 1 else ""
    return Interpreter(path=path, version=version, implementation="")


def encode_manifest(manifest: RunManifest) -> bytes:
    """Return *manifest* as JSON of at most MOST_BYTES: of a larger one the details go that are least missed."""
    for smaller in (_as_it_is, _without_files, _without_variables, _without_hyperparameters, _without_packages):
        manifest = smaller(manifest)
        document = msgspec.json.format(encode(manifest), indent=1) + b"\n"
        if len(document) <= MOST_BYTES:
            return document
    return document


def _as_it_is(manifest: RunManifest) -> RunManifest:
    return manifest


def _without_files(manifest: RunManifest) -> RunManifest:
    def shorten(tree: FileTree | None) -> FileTree | None:
        return None if tree is None else replace(tree, digests={})

    channels = {name: replace(channel, tree=shorten(channel.tree)) for name, channel in manifest.channels.items()}
    return _note(replace(manifest, source=shorten(manifest.source), channels=channels), "the digests of single files")


def _without_variables(manifest: RunManifest) -> RunManifest:
    digests = "".join(f"{name}\0{value}\0" for name, value in manifest.environment.items())
    whole = sha256(digests.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    shorter = replace(manifest, environment={"(all)": whole})
    return _note(shorter, f"the digests of {len(manifest.environment)} variables: (all) is that of all of them")


def _without_hyperparameters(manifest: RunManifest) -> RunManifest:
    digests = "".join(f"{name}\0{value}\0" for name, value in manifest.hyperparameters.items())
    whole = sha256(digests.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    shorter = replace(manifest, hyperparameters={"(all)": f"sha256:{whole}"})
    return _note(shorter, f"{len(manifest.hyperparameters)} hyperparameters: (all) is the digest of all of them")


def _without_packages(manifest: RunManifest) -> RunManifest:
    digests = "".join(f"{name}\0{value}\0" for name, value in manifest.packages.items())
    whole = sha256(digests.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    shorter = replace(manifest, packages={"(all)": f"- {whole}"}, package_places={})
    return _note(shorter, f"{len(manifest.packages)} packages: (all) is the digest of all of them")


def _note(manifest: RunManifest, what: str) -> RunManifest:
    text = f"{what}: the manifest would have more than {MOST_BYTES:,} bytes"
    return replace(manifest, left_out=(*manifest.left_out, text))


def _digest_channel(channel: Channel, left_out: list[str]) -> FileTree | None:
    return None if channel.mode == "Pipe" else _digest(f"channel {channel.name}", channel.folder, left_out)


def _digest(name: str, folder: Path, left_out: list[str]) -> FileTree | None:
    tree = digest_tree(folder)
    if tree is None:
        left_out.append(f"{name}: {folder} is not there")
    elif not tree.is_whole:
        left_out.append(f"{name}: only {tree.files:,} files of {folder} were looked at")
    return tree


def _digest_documents(
    config: Path, has_secret_hyperparameter: bool, mask: Callable[[str], str], left_out: list[str]
) -> dict[str, str]:
    """Return the digest of each document in *config*; of one with a secret none, as the rest of it is known, and the
    secret could be guessed."""
    digests = {}
    try:
        names = folders.names(config)
    except OSError as error:
        left_out.append(f"the documents in {config}: {error.strerror}")
        return {}
    for name in names:
        try:
            content = files.read(config / name)
            text = content.decode("utf-8", "replace")
            holds_secret = (name == "hyperparameters.json" and has_secret_hyperparameter) or mask(text) != text
            digests[name] = SECRET if holds_secret else sha256(content).hexdigest()[:16]
        except IsADirectoryError:
            continue
        except OSError as error:
            left_out.append(f"{config / name}: {error.strerror}")
    return digests
