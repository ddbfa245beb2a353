"""`toolkit render`: write the manifest that runs a job file on Kubernetes, Slurm or Compose."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.parser import one_of, whole
from toolkit.errors import ContractError
from toolkit.log import Log
from toolkit.masking.names import is_secret

if TYPE_CHECKING:
    from toolkit.jobfile.spec import JobFile
    from toolkit.render.inside import Choices

KINDS = {
    "job": "a Kubernetes Indexed Job, with its service and config map",
    "jobset": "a JobSet, with its config map",
    "slurm": "a batch script",
    "compose": "a Compose project: the hosts as containers of this machine",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    kinds = "; ".join(f"{name}: {meaning}" for name, meaning in KINDS.items())
    parser.add_argument("kind", type=one_of(KINDS), metavar="KIND", help=kinds)
    parser.add_argument("job", metavar="JOB", help="a job file, as toolkit run takes it (.toml, .yaml, .json)")
    parser.add_argument("--image", default="", metavar="IMAGE", help="the image that has the toolkit (slurm: if any)")
    parser.add_argument("--gpus", type=whole, default=0, metavar="N", help="GPUs of each host")
    parser.add_argument("--shm", default="1Gi", metavar="SIZE", help="shared memory of each container (default: 1Gi)")
    parser.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="WHAT=CLAIM[/FOLDER]",
        help="on Kubernetes, the persistent volume claim of a channel, or of code, model, output, checkpoints",
    )
    parser.add_argument(
        "--notice", type=whole, metavar="SECONDS", help="on Slurm, SIGUSR1 so long before the time limit"
    )


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Print the manifest; return 0."""
    from toolkit.jobfile.file import read
    from toolkit.jobfile.options import Origin
    from toolkit.jobfile.spec import complete
    from toolkit.render.inside import Choices

    file = Path(arguments.job).absolute()
    options = read(file, "Name the file that `toolkit run` takes, as job.toml.")
    # Unlike `toolkit run`, add no time to the name: the same file gives the same manifest.
    named = re.sub("[^A-Za-z0-9]+", "-", Path(str(options.get("script"))).stem).strip("-")
    options.setdefault("name", named or "job")
    asked = complete(options, Origin(where=str(file)), folder=Path.cwd(), stamp="")
    _check_kind(arguments)
    user = _person(asked, log) if arguments.kind == "compose" else ""
    choices = Choices(
        user=user,
        image=arguments.image,
        gpus=arguments.gpus,
        shm=arguments.shm,
        claims=dict(_claim(text) for text in arguments.claim),
        notice_s=arguments.notice,
    )
    given = (*asked.spec.environment.items(), *asked.spec.hyperparameters.items())
    shown = [name for name, value in given if is_secret(name, value)]
    if shown and arguments.kind != "slurm":
        log.warning(f"{', '.join(shown)}: the manifest shows it to all who read it; give it as the platform's secret")
    print(manifest(arguments.kind, asked, choices, file), end="")
    return 0


def _check_kind(arguments: argparse.Namespace) -> None:
    """Raise ContractError for an option that the kind of manifest does not support."""
    for option, given, kinds in (
        ("--claim", arguments.claim, ("job", "jobset")),
        ("--notice", arguments.notice, ("slurm",)),
    ):
        if given and arguments.kind not in kinds:
            hint = f"Leave {option} out."
            raise ContractError(
                f"expected it for {' or '.join(kinds)} alone, found it for {arguments.kind}", where=option, hint=hint
            )


def _person(asked: "JobFile", log: Log) -> str:
    """Return the user of a project's containers ("" for the image's), and make the folders that they write to."""
    from toolkit.local.containers import person
    from toolkit.render.compose import folders

    user = person()
    for folder in folders(asked) if user else ():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning(f"{folder}: cannot be made ({error.strerror}); make it before `docker compose up`, writable")
    return user


def manifest(kind: str, asked: "JobFile", choices: "Choices", file: Path) -> str:
    """Return the text of a *kind* of manifest.

    Raises:
        ContractError: the job or the choices lack something it needs.
    """
    from toolkit.render import compose, kubernetes, slurm
    from toolkit.render.text import text

    if kind == "slurm":
        return slurm.script(asked, choices, file)
    if kind == "compose":
        return text([compose.project(asked, choices)])
    return text(kubernetes.job(asked, choices) if kind == "job" else kubernetes.jobset(asked, choices))


def _claim(text: str) -> tuple[str, str]:
    what, equals, claim = text.partition("=")
    if not what or not equals or not claim:
        raise ContractError(f"expected WHAT=CLAIM or WHAT=CLAIM/FOLDER, found {text!r}", where="--claim")
    return what, claim
