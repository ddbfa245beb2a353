"""Reads the channel sm_drivers, which SageMaker's SDK v3 (ModelTrainer) sends in place of hyperparameters.

Jobs of that SDK do not start an image's `train`: /bin/bash runs sm_drivers/sm_train.sh, with this toolkit installed or
not. If `train` is started all the same, by the job's own command (`exec train`) or as an image's entry point, the
channel's documents name the script and how to start its ranks (sagemaker-train 1.27.0, model_trainer.py and
distributed.py, seen 2026-11): sourcecode.json holds SourceCode, distributed.json all keys of Torchrun or MPI, or {}.
Those of the toolkit's own `Toolkit` and `source_code` (distributions/sagemaker_sdk) are keys there, too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from toolkit.errors import ContractError
from toolkit.folders import may_exist
from toolkit.job.cluster import Cluster
from toolkit.job.documents import parameters
from toolkit.job.documents.input_config import load, typed
from toolkit.job.file.distribution import strategy_of
from toolkit.job.file.options import Origin
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import Strategy
from toolkit.patterns import lazy
from toolkit.records import Record

ASSIGNED = lazy(r"[A-Za-z_]\w*=")
# Programs that become another one, or start it and pass signals on: their options with a value of its own, and how many
# words stand before the program.
STARTERS: dict[str, tuple[tuple[str, ...], int]] = {
    "exec": (("-a",), 0),
    "command": ((), 0),
    "env": (("-u", "--unset", "-C", "--chdir"), 0),
    "nohup": ((), 0),
    "setsid": ((), 0),
    "nice": (("-n", "--adjustment"), 0),
    "ionice": (("-c", "--class", "-n", "--classdata"), 0),
    "stdbuf": (("-i", "--input", "-o", "--output", "-e", "--error"), 0),
    "timeout": (("-k", "--kill-after", "-s", "--signal"), 1),
    "gosu": ((), 1),
    "su-exec": ((), 1),
    "tini": (("-p", "-e"), 0),
    "tini-static": (("-p", "-e"), 0),
    "docker-init": (("-p", "-e"), 0),
    "dumb-init": (("-r", "--rewrite"), 0),
    "catatonit": ((), 0),
}
HINT = "The SDK's ModelTrainer writes it"
PORT = 7777
# A variable of sm_train.sh's own (scripts/environment.py): `train` runs below it.
SDK_SETS = "SM_OUTPUT_FAILURE"


class SourceCode(Record, frozen=True, kw_only=True):
    """sourcecode.json."""

    entry_script: str | None = None
    """The script, in the source."""
    command: str | None = None
    """What sm_train.sh runs in place of a driver."""
    args: tuple[str | int | float, ...] | None = None
    """The words behind the command: our script's."""
    requirements: str | None = None
    """The file in the source that sm_train.sh installs."""
    toolkit_requirements: str | None = None
    """The one that `train` installs: requirements.txt, or "auto" for the same where it is there."""
    source_dir: str | None = None
    """A path on the sender's machine; in the container its content is channel code."""


class Distributed(Record, frozen=True, kw_only=True):
    """The keys of distributed.json that Torchrun and MPI share, and MPI's options."""

    process_count_per_node: Annotated[int, msgspec.Meta(ge=1)] | None = None
    mpi_additional_options: tuple[str, ...] | None = None


class Toolkit(Record, frozen=True, kw_only=True):
    """The keys of distributed.json that the toolkit's own class writes."""

    distribution: str | dict[str, Any] | None
    processes_per_host: Annotated[int, msgspec.Meta(ge=1)] | None = None


def with_sdk_drivers(spec: JobSpec, cluster: Cluster, data: Path, environ: Mapping[str, str]) -> JobSpec:
    """Return *spec*, which names no script, with the values of the channel's documents.

    The job's command may be `train` itself, or a program that starts it: sm_train.sh runs it in place of the SDK's own
    drivers. Without an entry_script beside it, *spec* is returned unchanged: the image names the script.

    Raises:
        ContractError: a document is wrong, or asks for something that only sm_train.sh supports.
    """
    file = data / "sm_drivers/sourcecode.json"
    source = typed(load(file, hint=HINT), SourceCode, f"{file}: $")
    by_the_sdk = SDK_SETS in environ  # Then sm_train.sh runs, and its command, whatever it is, has started us.
    starts_us = bool(source.command) and (by_the_sdk or starts_train(source.command or ""))
    if not source.entry_script and starts_us:
        return spec
    if (source.command and not starts_us) or not source.entry_script:
        command = f"the command {source.command!r}" if source.command else "none"
        raise ContractError(
            f"$.entry_script: expected a script, found {command}",
            where=str(file),
            hint="Commands are sm_train.sh's: leave the job's entry point as ModelTrainer sets it.",
        )
    is_known = source.requirements in (None, "auto", "requirements.txt")
    if not is_known and not by_the_sdk:
        raise ContractError(
            f"$.requirements: expected requirements.txt at the top of source_dir, found {source.requirements!r}",
            where=str(file),
            hint="Rename the file.",
        )
    folder = source.source_dir or ""
    submitted = str(data / "code" / (Path(folder).name if folder.endswith(".tar.gz") else "")) if folder else None
    strategy, groups = _strategy(data, cluster)
    strategy = strategy or spec.strategy
    parallel = strategy.model_parallel
    return msgspec.structs.replace(
        spec,
        entry=source.entry_script.removeprefix("./"),
        entry_from=f"{file.name}: $.entry_script",
        source=submitted or spec.source,
        source_from=f"{file.name}: $.source_dir" if submitted else spec.source_from,
        requirements=source.toolkit_requirements is not None
        or (source.requirements is not None and is_known),  # sm_train.sh has installed any other.
        strategy=strategy,
        groups=groups or spec.groups,
        hyperparameters={**({} if parallel is None else {parameters.MODEL_PARALLEL: parallel}), **spec.hyperparameters},
        argument_style="json",  # As the SDK's own drivers write arguments.
        arguments=tuple(map(str, source.args or ())),
        defaults={**spec.defaults, **_variables(source.entry_script, cluster, data)},
        platform_values=msgspec.structs.replace(
            spec.platform_values, module_dir=submitted or spec.platform_values.module_dir
        ),
    )


def starts_train(command: str) -> bool:
    """True if the last program of the shell command *command* is `train`.

    >>> starts_train("cd x && A=1 exec /opt/venv/bin/train --y"), starts_train("train && rm x")
    (True, False)
    """
    import shlex

    try:
        # A line that goes on is one; else a line's end, behind any comment, ends a command.
        lines = command.replace("\\\n", " ").replace("\n", "\n;\n")
        lexer = shlex.shlex(lines, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words = _without_redirections(list(lexer))
    except ValueError:
        return False  # No closing quotation: not even a shell takes it.
    while words and set(words[-1]) == {";"}:
        words.pop()
    last = max((index for index, word in enumerate(words) if set(word) <= set(";&|")), default=-1)
    words = words[last + 1 :]
    while words and (ASSIGNED.match(words[0]) or Path(words[0]).name in STARTERS):
        words = words[1:] if ASSIGNED.match(words[0]) else _started(words)
    program = Path(words[0]).name if words else ""
    return program == "train" or (program == "toolkit" and words[1:2] == ["train"])


def _without_redirections(words: list[str]) -> list[str]:
    """Return the *words* of a command without its redirections: 2>&1, > log, <<<text.

    A number before one may be an argument, too (`train 2 >log`): what is left tells the program, not its arguments.
    """
    rest: list[str] = []
    index = 0
    while index < len(words):
        if set(words[index]) <= set("<>&|") and set(words[index]) & set("<>"):
            if rest and rest[-1].isdecimal():
                rest.pop()
            index += 1  # And the file or descriptor behind it.
        else:
            rest.append(words[index])
        index += 1
    return rest


def _started(words: list[str]) -> list[str]:
    """Return the words that the starter *words*[0] makes its program."""
    with_value, skipped = STARTERS[Path(words[0]).name]
    index = 1
    while index < len(words) and words[index].startswith("-"):
        if words[index] == "--":
            index += 1
            break
        index += 2 if words[index] in with_value else 1
    return words[index + skipped :]


def _variables(entry: str, cluster: Cluster, data: Path) -> dict[str, str]:
    """Return the variables that scripts get from sm_train.sh and not from `train`."""
    drivers = data / "sm_drivers"
    return {
        "SM_INPUT_DATA_DIR": str(data),
        "SM_OUTPUT_FAILURE": str(data.parents[1] / "output/failure"),
        "SM_SOURCE_DIR": str(data / "code"),
        "SM_ENTRY_SCRIPT": entry,
        "SM_DISTRIBUTED_DRIVER_DIR": str(drivers / "distributed_drivers"),
        "SM_DISTRIBUTED_CONFIG": json.dumps(_distributed(data)),
        "SM_HOST_COUNT": str(len(cluster.hosts)),
        "SM_CURRENT_HOST_RANK": str(cluster.hosts.index(cluster.current)),
        "SM_MASTER_ADDR": cluster.hosts[0],
        "SM_MASTER_PORT": str(PORT),
    }


def _strategy(data: Path, cluster: Cluster) -> tuple[Strategy | None, tuple[str, ...]]:
    """Return how ranks are started, None if the channel does not say; and the instance groups that take part."""
    distributed = _distributed(data)
    if not distributed:
        return None, ()
    if "distribution" in distributed:
        own = typed(distributed, Toolkit, f"{data}/sm_drivers/distributed.json: $")
        groups = {group.name for group in cluster.groups}
        strategy, named = strategy_of(own.distribution, groups, Origin(where=f"{data}/sm_drivers/distributed.json"))
        if own.processes_per_host is not None:
            strategy = msgspec.structs.replace(strategy, processes_per_host=own.processes_per_host)
        return strategy, named
    shared = typed(distributed, Distributed, f"{data}/sm_drivers/distributed.json: $")
    if "mpi_additional_options" not in distributed:
        return Strategy(name="torch_distributed", processes_per_host=shared.process_count_per_node), ()
    options = " ".join(shared.mpi_additional_options or ())
    count = shared.process_count_per_node
    return Strategy(name="mpi", processes_per_host=count, mpirun_options=options), ()


def _distributed(data: Path) -> dict[str, Any]:
    file = data / "sm_drivers/distributed.json"
    if not may_exist(file, follow_links=False):
        return {}
    return typed(load(file, hint=HINT) or {}, dict[str, Any], f"{file}: $")
