"""manifest.json: what ran on one host, to be compared with another run, and to be run again (docs/manifest.md)."""

from __future__ import annotations  # A third of the time that this import costs the fork which writes a manifest.

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from toolkit import files
from toolkit.errors import ContractError
from toolkit.records import Record, decode, meaning

# The version of manifest.json's format: docs/versions.md says what raises it.
SCHEMA_VERSION: Final = 1
# In place of a hyperparameter's value, and of the digest of a variable or document, that is or holds a secret.
SECRET = "secret"
HINT = "`toolkit docs manifest` says which versions read it."


class FileTree(Record, frozen=True, kw_only=True):
    """The files below a folder. Links are followed; .git, __pycache__ and compiled Python files are left out."""

    digest: Annotated[
        str, meaning("SHA-256 over the names, sizes and contents (or times) of the files, in 32 hexadecimal digits")
    ]
    files: Annotated[int, meaning("how many files were looked at")]
    bytes: Annotated[int, meaning("their size together")]
    unread_files: Annotated[
        int, meaning("files among them whose size and time of change stand for their content, as they are too large")
    ] = 0
    is_whole: Annotated[
        bool, meaning("false: the folder has more files than are looked at, or some of it cannot be read")
    ] = True
    digests: Annotated[
        dict[str, str],
        meaning("the digest of each file in 16 digits; empty if there are more than 24 files"),
    ] = {}


class ManifestChannel(Record, frozen=True, kw_only=True):
    """An input channel on this host."""

    mode: Annotated[str, meaning("File, FastFile or Pipe")]
    sharded: Annotated[bool, meaning("this host has a share of the files")] = False
    uri: Annotated[str, meaning("its place in storage, with secrets masked; empty: `train` did not fetch it")] = ""
    tree: Annotated[FileTree | None, meaning("its files; null: they cannot be looked at (Pipe)")] = None


class Interpreter(Record, frozen=True, kw_only=True):
    """The Python that ran the script."""

    path: Annotated[str, meaning("its file")]
    version: Annotated[str, meaning("its version, as 3.11.7")]
    implementation: Annotated[str, meaning("cpython, or another")]


class Hardware(Record, frozen=True, kw_only=True):
    """The machine below the job. A text is empty where nothing on this host tells it."""

    architecture: Annotated[str, meaning("x86_64, aarch64, ...")]
    cpu: Annotated[str, meaning("the processor's model")]
    cpus: Annotated[int, meaning("the cores that the job may use")]
    memory_bytes: Annotated[int, meaning("the memory that the job may use")]
    kernel: Annotated[str, meaning("the kernel's release")]
    system: Annotated[str, meaning("the distribution in the image, as Debian GNU/Linux 12 (bookworm)")]
    libc: Annotated[str, meaning("the C library, as glibc 2.36")]
    gpus: Annotated[tuple[str, ...], meaning("the model of each GPU that the job may use")] = ()
    driver: Annotated[str, meaning("the version of NVIDIA's driver")] = ""
    cuda: Annotated[str, meaning("the version of CUDA's runtime, and which package or variable says so")] = ""
    nccl: Annotated[str, meaning("the same of NCCL")] = ""
    cudnn: Annotated[str, meaning("the same of cuDNN")] = ""


class RunManifest(Record, frozen=True, kw_only=True):
    """The job, its software and its machine, as they were on this host when the script began."""

    schema_version: Annotated[Literal[1], meaning("the version of this file's format")] = SCHEMA_VERSION
    toolkit: Annotated[str, meaning("the version of the toolkit")]
    job: Annotated[str, meaning("the job's name; empty if it has none")] = ""
    host: Annotated[str, meaning("this host's name")]
    hosts: Annotated[int, meaning("how many hosts the job had")]
    script: Annotated[str, meaning("the script, relative to the source")]
    strategy: Annotated[str, meaning("the distribution, as `toolkit run --distribution` takes it")]
    processes_per_host: Annotated[int, meaning("the ranks that the job asked for on each host")]
    hyperparameters: Annotated[
        dict[str, str],
        meaning("each as JSON; `secret` in place of a secret, `sha256:` and 16 digits in place of a long one"),
    ] = {}
    seeds: Annotated[
        dict[str, str], meaning("the random seeds that hyperparameters and variables set, by their names")
    ] = {}
    image: Annotated[str, meaning("the container image: the text of TOOLKIT_IMAGE; empty: not known")] = ""
    source: Annotated[FileTree | None, meaning("the files of the code folder; null: they cannot be looked at")] = None
    source_commit: Annotated[
        str,
        meaning(
            "the git commit of the source, and behind a + the digest of what is not committed, in 16 digits; empty:"
            " not known"
        ),
    ] = ""
    channels: Annotated[dict[str, ManifestChannel], meaning("the input channels by name")] = {}
    documents: Annotated[
        dict[str, str],
        meaning("the SHA-256 of each document in input/config, in 16 hexadecimal digits, or `secret` if it holds one"),
    ] = {}
    interpreter: Annotated[Interpreter, meaning("the Python that ran the script")]
    packages: Annotated[
        dict[str, str],
        meaning(
            "the installed packages: the version, a space, and the first 16 hexadecimal digits of the SHA-256 of the"
            " package's RECORD (`-` without one)"
        ),
    ] = {}
    package_places: Annotated[
        dict[str, str], meaning("the URL or folder of packages that pip installed from none of its indexes")
    ] = {}
    hardware: Annotated[Hardware, meaning("the machine")]
    environment: Annotated[
        dict[str, str],
        meaning(
            "the variables of `train`: the first 16 digits of the SHA-256 of NAME=VALUE, or `secret` (docs/manifest.md)"
        ),
    ] = {}
    left_out: Annotated[tuple[str, ...], meaning("what is missing here, and why")] = ()


def read(file: Path) -> RunManifest:
    """Return the manifest in *file*.

    Raises:
        ContractError: it is none, or of a version that this toolkit does not read.
        OSError: it cannot be read.
    """
    content = files.read(file)
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        version = None
    if version is not None and version != SCHEMA_VERSION:
        raise ContractError(
            f"expected schema_version {SCHEMA_VERSION}, found {str(version)[:40]}", where=str(file), hint=HINT
        )
    return decode(content, RunManifest, str(file), hint="The file is damaged, or no manifest of `train`.")


class _Version(Record, frozen=True, kw_only=True):
    schema_version: Any = None
