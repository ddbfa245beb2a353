"""`toolkit run --dry-run`: check the job's options, and show what `toolkit check` says about its first host."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from toolkit.cli.check import lines
from toolkit.commands.check.preflight import check
from toolkit.commands.check.result import worst
from toolkit.commands.simulate import check as checked
from toolkit.commands.simulate import remote, stage
from toolkit.exit_codes import MISCONFIGURED
from toolkit.job.documents.writing import inputs
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log

# The checks that do not depend on the image.
WITHOUT_IMAGE = ("settings", "variables", "documents", "channels", "metrics", "code", "rules")


def dry_run(asked: JobFile, own: Mapping[str, str], log: Log) -> int:
    """Print the plan and the table of the first host; return 0, or 78 if a line fails. The job's folder is not changed.

    For a job in containers, print only the checks that do not depend on the image.

    Raises:
        UserError, PlatformError: the job could not be started.
    """
    checked.check(asked)
    with TemporaryDirectory(prefix="toolkit-dry-run-") as folder:
        # Prepare the host in a temporary folder, with channels linked and not copied: they may be large.
        linked = tuple(
            msgspec.structs.replace(each, mode="FastFile") for each in asked.spec.channels if each.mode != "Pipe"
        )
        simulated = msgspec.structs.replace(
            asked,
            channels=linked,
            checkpoints=None,
            run=msgspec.structs.replace(asked.run, job_dir=Path(folder), backend="process"),
        )
        simulated = remote.fetch_channels(simulated, own, log, content=False)
        (first,) = stage.stage(simulated, own, log, only=asked.hosts[:1])
        (first.setup.base / "input/config/inputdataconfig.json").write_text(json.dumps(inputs(asked)))
        report = check(first.environ, interpreter=first.argv[0], log=log)
        stage.make_writable(first)
        if asked.run.backend == "docker":
            results = tuple(each for each in report.results if each.name in WITHOUT_IMAGE)
            report = msgspec.structs.replace(report, plan=None, results=results)
        text = "\n".join(
            lines(report, first.environ, lambda each: log.mask(each).replace(folder, str(asked.run.job_dir)))
        )
    hosts = f"{len(asked.hosts)} hosts" if len(asked.hosts) > 1 else "1 host"
    print(f"{asked.spec.name}: {hosts}, in {asked.run.job_dir}; host {first.setup.host}:\n\n{text}", flush=True)
    if asked.run.backend == "docker":
        log.info(
            f"{asked.run.image} was not inspected, so there is no plan: its Python, packages, launcher and GPUs may"
            " differ from this machine's"
        )
    return MISCONFIGURED if worst(report.results) == "fail" else 0
