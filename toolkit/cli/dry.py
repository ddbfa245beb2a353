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


def dry_run(job_file: JobFile, environ: Mapping[str, str], log: Log) -> int:
    """Print the plan and the table of the first host; return 0, or 78 if a line fails. The job's folder is not changed.

    For a job in containers, print only the checks that do not depend on the image.

    Raises:
        UserError, PlatformError: the job could not be started.
    """
    checked.check(job_file)
    with TemporaryDirectory(prefix="toolkit-dry-run-") as folder:
        # Prepare the host in a temporary folder, with channels linked and not copied: they may be large.
        linked = tuple(
            msgspec.structs.replace(channel, mode="FastFile") for channel in job_file.channels if channel.mode != "Pipe"
        )
        simulated = msgspec.structs.replace(
            job_file,
            channels=linked,
            checkpoints=None,
            run=msgspec.structs.replace(job_file.run, job_dir=Path(folder), backend="process"),
        )
        simulated = remote.fetch_channels(simulated, environ, log, content=False)
        (first,) = stage.stage(simulated, environ, log, only=job_file.hosts[:1])
        (first.setup.base / "input/config/inputdataconfig.json").write_text(json.dumps(inputs(job_file)))
        report = check(first.environ, interpreter=first.argv[0], log=log)
        stage.make_writable(first)
        if job_file.run.backend == "docker":
            results = tuple(result for result in report.results if result.name in WITHOUT_IMAGE)
            report = msgspec.structs.replace(report, plan=None, results=results)
        text = "\n".join(
            lines(report, first.environ, lambda text: log.mask(text).replace(folder, str(job_file.run.job_dir)))
        )
    hosts = f"{len(job_file.hosts)} hosts" if len(job_file.hosts) > 1 else "1 host"
    print(f"{job_file.name}: {hosts}, in {job_file.run.job_dir}; host {first.setup.host}:\n\n{text}", flush=True)
    if job_file.run.backend == "docker":
        log.info(
            f"{job_file.run.image} was not inspected, so there is no plan: its Python, packages, launcher and GPUs may"
            " differ from this machine's"
        )
    return MISCONFIGURED if worst(report.results) == "fail" else 0
