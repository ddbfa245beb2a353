"""`toolkit render`: write the manifest that runs a job file on Kubernetes, Slurm, SkyPilot, AWS Batch and others."""

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.parser import one_of, whole
from toolkit.errors import ContractError
from toolkit.log import Log
from toolkit.masking.names import is_secret
from toolkit.settings import MOST

if TYPE_CHECKING:
    from toolkit.commands.render.inside import Choices, Toleration
    from toolkit.job.file.job_file import JobFile

IMAGE = "the image that has the toolkit (default: the job file's; slurm: none; ray takes none)"
KINDS = {
    "job": "a Kubernetes Indexed Job, with its service and config map",
    "jobset": "a JobSet, with its config map",
    "trainjob": "a TrainJob of Kubeflow Trainer v2, with its runtime and config map",
    "slurm": "a batch script",
    "sky": "a task of SkyPilot",
    "dstack": "a task of dstack",
    "batch": "a job definition of AWS Batch, multi-node for several hosts",
    "ray": "the driver of a Ray job",
    "compose": "a Compose project: the hosts as containers of this machine",
}

SIZE = re.compile(r"[1-9][0-9]*[KMGT]i")
REPEATED = (
    ("--secret", "NAME", "a Secret whose keys are variables of the pods"),
    ("--pull-secret", "NAME", "a Secret for the image's registry"),
    ("--node", "LABEL=VALUE", "run on nodes with this label"),
    ("--tolerate", "KEY[=VALUE][:EFFECT]", "run on nodes with this taint, too"),
)
SINGLE = (
    ("--service-account", "NAME", "the pods' service account"),
    ("--user", "UID[:GID]", "the pods' user, without any rights of root (default: the image's)"),
    ("--name", "NAME", "the name of everything (default: the job file's, with a suffix for each run)"),
)
KUBERNETES = ("job", "jobset", "trainjob")
# Kinds that take no image from the job file.
WITHOUT_IMAGE = ("slurm", "ray")
# What a job file may ask of `toolkit run` alone; a manifest has its own way to say it, or none.
OF_RUN = ("stop-after", "kill", "interrupt", "max-wait", "backend", "memory", "shm-size")
LEFT_OUT = {
    "job": OF_RUN,
    "jobset": OF_RUN,
    "trainjob": OF_RUN,
    "slurm": (*OF_RUN, "image"),
    "sky": (*OF_RUN, "max-run"),
    "dstack": OF_RUN,
    "batch": OF_RUN,
    "ray": (*OF_RUN, "max-run", "image"),
    "compose": (*OF_RUN, "max-run"),
}
EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def size(word: str) -> str:
    """The type of an argument that is a size of memory, as 64Gi.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not SIZE.fullmatch(word):
        raise argparse.ArgumentTypeError(f"expected a size as 512Mi or 64Gi, found {word!r}")
    return word


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    kinds = "; ".join(f"{name}: {meaning}" for name, meaning in KINDS.items())
    parser.add_argument("kind", type=one_of(KINDS), metavar="KIND", help=kinds)
    parser.add_argument("job", metavar="JOB", help="a job file, as toolkit run takes it (.toml, .yaml, .json)")
    parser.add_argument("--image", default="", metavar="IMAGE", help=IMAGE)
    parser.add_argument("--gpus", type=whole, default=0, metavar="N", help="GPUs of each host")
    parser.add_argument("--gpu-type", default="", metavar="TYPE", help="the GPUs' type, as A100 (sky; dstack: any)")
    parser.add_argument("--cpus", type=whole, default=0, metavar="N", help="CPUs of each host (slurm: default: all)")
    parser.add_argument(
        "--memory", type=size, metavar="SIZE", help="memory of each host, as 64Gi (slurm: default: all)"
    )
    parser.add_argument(
        "--shm", type=size, default="1Gi", metavar="SIZE", help="shared memory of each container (default: 1Gi)"
    )
    parser.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="WHAT=CLAIM[/FOLDER]",
        help="on Kubernetes, the persistent volume claim of a channel, or of code, model, output, checkpoints",
    )
    for option, metavar, meaning in REPEATED:
        parser.add_argument(option, action="append", default=[], metavar=metavar, help=f"on Kubernetes, {meaning}")
    for option, metavar, meaning in SINGLE:
        parser.add_argument(option, default="", metavar=metavar, help=f"on Kubernetes, {meaning}")
    parser.add_argument(
        "--notice", type=whole, metavar="SECONDS", help="on Slurm, SIGUSR1 so long before the time limit"
    )


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Print the manifest; return 0."""
    from toolkit.commands.render.inside import Choices
    from toolkit.job.file.job_file import check_job_file
    from toolkit.job.file.options import Origin
    from toolkit.job.file.reading import read

    file = Path(arguments.job).absolute()
    options = read(file, "Name the file that `toolkit run` takes, as job.toml.")
    # Unlike `toolkit run`, add no time to the name: the same file gives the same manifest.
    script_name = re.sub("[^A-Za-z0-9]+", "-", Path(str(options.get("script"))).stem).strip("-")
    options["name"] = arguments.name or options.get("name", script_name or "job")
    origin = Origin(where=str(file), names={"name": "--name"} if arguments.name else {})
    job_file = check_job_file(options, origin, folder=Path.cwd(), stamp="")
    _check_kind(arguments)
    _check_values(arguments)
    user = _prepare_user(job_file, log) if arguments.kind == "compose" else _check_user(arguments.user)
    choices = Choices(
        user=user,
        image=arguments.image or ((job_file.run.image or "") if arguments.kind not in WITHOUT_IMAGE else ""),
        cpus=arguments.cpus,
        gpus=arguments.gpus,
        gpu_type=arguments.gpu_type,
        memory=arguments.memory or "",
        shm=arguments.shm,
        claims=dict(_parse_pair(text, "--claim", "WHAT=CLAIM or WHAT=CLAIM/FOLDER") for text in arguments.claim),
        notice_s=arguments.notice,
        suffix="" if arguments.name else os.urandom(3).hex(),
        node_labels=dict(_parse_pair(text, "--node", "LABEL=VALUE") for text in arguments.node),
        tolerations=tuple(_parse_toleration(text) for text in arguments.tolerate),
        secrets=tuple(arguments.secret),
        pull_secrets=tuple(arguments.pull_secret),
        service_account=arguments.service_account,
    )
    named_values = (*job_file.environment.items(), *job_file.hyperparameters.items())
    secret_names = [name for name, value in named_values if is_secret(name, value)]
    if secret_names and arguments.kind != "slurm":
        log.warning(
            f"{', '.join(secret_names)}: the manifest shows it to all who read it; give it as the platform's secret"
        )
    text = manifest(arguments.kind, job_file, choices, file)
    if arguments.kind in KUBERNETES and not (choices.cpus and choices.memory):
        log.warning("without --cpus and --memory the pods are the first that a full node evicts")
    left_out = [option for option in LEFT_OUT[arguments.kind] if options.get(option) not in (None, [])]
    if left_out:
        log.info(f"the manifest leaves out what only `toolkit run` takes from the job file: {', '.join(left_out)}")
    print(text, end="")
    return 0


def _check_kind(arguments: argparse.Namespace) -> None:
    """Raise ContractError for an option that the kind of manifest does not support."""
    kubernetes_options = [
        (option, getattr(arguments, option[2:].replace("-", "_"))) for option, *_ in (*REPEATED, *SINGLE)
    ]
    for option, value, kinds in (
        ("--claim", arguments.claim, KUBERNETES),
        ("--image", arguments.image, tuple(kind for kind in KINDS if kind != "ray")),
        ("--gpu-type", arguments.gpu_type, ("sky", "dstack")),
        ("--notice", arguments.notice, ("slurm",)),
        *((option, value, KUBERNETES) for option, value in kubernetes_options),
    ):
        if value and arguments.kind not in kinds:
            hint = f"Leave {option} out."
            raise ContractError(
                f"expected it for {' or '.join(kinds)} alone, found it for {arguments.kind}", where=option, hint=hint
            )


def _check_values(arguments: argparse.Namespace) -> None:
    """Raise ContractError for a number that is none of things, or a name that no object of Kubernetes has."""
    from toolkit.commands.render.inside import OBJECT

    for option, least in (("gpus", 0), ("cpus", 0), ("notice", 1)):
        value = getattr(arguments, option)
        if value is not None and not least <= value <= MOST:
            message = f"expected a whole number, {least} to {MOST:,}, found {value}"
            raise ContractError(message, where=f"--{option}")
    repeated = (("--secret", arguments.secret), ("--pull-secret", arguments.pull_secret))
    names = [(option, name) for option, values in repeated for name in values]
    for option, name in [("--service-account", arguments.service_account), *names]:
        if name and not OBJECT.fullmatch(name):
            raise ContractError(f"expected a name of a-z, 0-9 and inner - or ., found {name!r}", where=option)


def _prepare_user(job_file: "JobFile", log: Log) -> str:
    """Return the user of a project's containers ("" for the image's), and make the folders that they write to."""
    from toolkit.commands.render.compose import folders
    from toolkit.commands.simulate.containers import container_user

    user = container_user()
    for folder in folders(job_file) if user else ():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning(f"{folder}: cannot be made ({error.strerror}); make it before `docker compose up`, writable")
    return user


def manifest(kind: str, job_file: "JobFile", choices: "Choices", file: Path) -> str:
    """Return the text of a *kind* of manifest.

    Raises:
        ContractError: the job or the choices lack something it needs.
    """
    from toolkit.commands.render import batch, compose, dstack, kubernetes, ray, sky, slurm, trainjob
    from toolkit.commands.render.text import text

    if kind == "slurm":
        return slurm.script(job_file, choices, file)
    if kind == "ray":
        return ray.driver(job_file, choices)
    documents = {
        "job": kubernetes.job,
        "jobset": kubernetes.jobset,
        "trainjob": trainjob.train_job,
        "compose": lambda *given: (compose.project(*given),),
        "sky": lambda *given: (sky.task(*given),),
        "dstack": lambda *given: (dstack.task(*given),),
        "batch": lambda *given: (batch.definition(*given),),
    }
    return text(documents[kind](job_file, choices))


def _parse_pair(text: str, option: str, expected: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise ContractError(f"expected {expected}, found {text!r}", where=option)
    return name, value


def _parse_toleration(text: str) -> "Toleration":
    from toolkit.commands.render.inside import Toleration

    taint, _, effect = text.partition(":")
    key, _, value = taint.partition("=")
    if not key or effect not in EFFECTS:
        effects = ", ".join(filter(None, EFFECTS))
        message = f"expected KEY, KEY=VALUE or either with :EFFECT, one of {effects}, found {text!r}"
        raise ContractError(message, where="--tolerate")
    return Toleration(key=key, value=value, effect=effect)


def _check_user(text: str) -> str:
    if text and not re.fullmatch(r"[0-9]+(:[0-9]+)?", text):
        raise ContractError(f"expected UID or UID:GID, in numbers, found {text!r}", where="--user")
    return text
