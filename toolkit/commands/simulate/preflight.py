"""Reads the documents and settings of a job as its hosts will, before anything of an earlier job is touched."""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from toolkit import settings
from toolkit.commands.simulate.documents import BASE, HostSetup, environment, region_of
from toolkit.commands.simulate.stage import write_documents
from toolkit.errors import ToolkitError
from toolkit.job.documents import sagemaker_variables
from toolkit.job.file.job_file import JobFile
from toolkit.job.job import Job
from toolkit.job.machine import Machine
from toolkit.log import Log
from toolkit.metrics.definition import compile
from toolkit.train.launchers import modelparallel
from toolkit.train.launchers import table as launchers
from toolkit.train.platforms import table as platforms


def examine(job_file: JobFile, user_environ: Mapping[str, str]) -> None:
    """Read the first host's documents, settings, metric definitions and parameters. *user_environ*: the person's
    environment.

    Of a job in containers only the settings are read: its settings may name files of the image.

    Raises:
        ContractError, UserError: with `train`'s message, what would end every host with 78.
    """
    with TemporaryDirectory(prefix="toolkit-run-") as folder:
        base = Path(folder) / "opt" / "ml"
        setup = HostSetup(
            host=job_file.hosts[0],
            base=base,
            submitted=BASE / "input" / "sourcedir.tar.gz",
            port=1,
            cpus=1,
            contained=job_file.run.backend == "docker",
        )
        environ = {
            **environment(job_file, setup, user_environ, region_of(user_environ)),
            sagemaker_variables.BASE_DIR: str(base),
        }
        write_documents(job_file, setup, region_of(user_environ))
        try:
            job_settings = settings.read(environ)
            if not setup.contained:
                _check(_job(job_file, environ, job_settings))
        except ToolkitError as error:
            if folder not in str(error):
                raise
            place = job_file.run.job_dir / "hosts" / setup.host
            raise _at(error, folder, str(place)) from None


def _job(job_file: JobFile, environ: Mapping[str, str], job_settings: settings.Settings) -> Job:
    silent = Log()
    silent.say_through(lambda _: None)  # `train` itself will say it.
    machine = Machine(cpus=os.cpu_count() or 1, cpus_total=os.cpu_count() or 1, memory_bytes=1 << 40)
    job, _ = platforms.read_job(
        platforms.detect(environ),
        environ,
        job_settings,
        machine,
        silent,
        interpreter="python",
        places=job_file.hyperparameter_places,
    )
    return job


def _check(job: Job) -> None:
    compile(job.spec.metric_definitions, "metric definitions")
    modelparallel.check(job, launchers.world_size(job))


def _at(error: ToolkitError, folder: str, place: str) -> ToolkitError:
    """Return *error* with the job's own folder in place of the temporary one."""
    message, hint, error_place = (text.replace(folder, place) for text in (error.message, error.hint, error.where))
    return type(error)(message, hint=hint, where=error_place, prefix=error.prefix)
