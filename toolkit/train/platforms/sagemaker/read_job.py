"""Reads the job that SageMaker describes in documents and variables, and the place where it runs."""

import sys
from collections.abc import Mapping
from typing import Any

from toolkit.folders import may_exist
from toolkit.job.base_folders import below
from toolkit.job.cluster import HOMOGENEOUS, Cluster, Group
from toolkit.job.documents import input_config, sagemaker_variables
from toolkit.job.documents.input_config import InstanceGroup, ResourceConfig
from toolkit.job.documents.job_spec import job_spec, program_sources
from toolkit.job.documents.parameters import decode_values
from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.log import Log
from toolkit.records import Record
from toolkit.settings import Settings
from toolkit.train.platforms.assemble import assemble
from toolkit.train.platforms.place import Place
from toolkit.train.platforms.program import choose_script

# StopTrainingJob, MaxRuntimeInSeconds and Spot interruptions end a container by `docker stop -t 120`.
STOP_WITHIN_S = 120.0


class DocumentContents(Record, frozen=True, kw_only=True):
    """The content of documents, in place of the files: that of hyperparameters.json decoded. None: the file's."""

    hyperparameters: dict[str, Any] | None = None
    input_data_config: dict[str, Any] | None = None
    resource_config: dict[str, Any] | None = None


def folders(environ: Mapping[str, str]) -> Folders:
    """Return the folders below SAGEMAKER_BASE_DIR, else /opt/ml."""
    return below(environ.get(sagemaker_variables.BASE_DIR, ""), environ, name=sagemaker_variables.BASE_DIR)


def read(
    environ: Mapping[str, str],
    settings: Settings,
    machine: Machine,
    log: Log,
    *,
    interpreter: str = sys.executable,
    needs_script: bool = True,  # noqa: ARG001 - this platform never refuses a job here for want of a script
    contents: DocumentContents | None = None,
    places: Mapping[str, str] = {},
) -> Job:
    """Return the job that *environ* and the documents describe; the script runs under *interpreter*.

    *contents*: used in place of documents. *places*: where hyperparameters of hyperparameters.json came from, for
    errors.

    Raises:
        ContractError: a document or a value in it is missing or wrong.
    """
    job_folders = folders(environ)
    contents = contents or DocumentContents()
    config = input_config.read(
        job_folders.config, log, hyperparameters=contents.hyperparameters, channels=contents.input_data_config
    )
    file = job_folders.config / "resourceconfig.json"
    place = place_of(*input_config.read_resources(file, contents.resource_config), environ, str(file))
    if settings.job is not None:
        log.warning(f"TOOLKIT_JOB={settings.job} is not read: SageMaker's documents say what the job is")
    hyperparameters = contents.hyperparameters
    if hyperparameters is None:
        hyperparameters = decode_values(config.hyperparameters)
    sources = [("TOOLKIT_PROGRAM", settings.program), *program_sources(hyperparameters, environ)]
    entry_from, entry = choose_script(sources, job_folders.code, log)
    spec = job_spec(
        config, hyperparameters, job_folders, environ, log, places=places, entry=entry, entry_from=entry_from
    )
    if spec.entry is None and may_exist(job_folders.data / "sm_drivers/sourcecode.json", follow_links=False):
        from toolkit.train.platforms.sagemaker.drivers import with_sdk_drivers

        spec = with_sdk_drivers(spec, place.cluster, job_folders.data, environ)
    return assemble(
        spec,
        place,
        settings,
        machine,
        folders=job_folders,
        environ=environ,
        interpreter=interpreter,
        log=log,
    )


def place_of(resources: ResourceConfig, raw: dict[str, Any], environ: Mapping[str, str], source: str) -> Place:
    """Return the place that resourceconfig.json describes. *raw*: its content; *source*: its path for errors.

    Without a job name and ARN this is no job of SageMaker's: a person mounted the documents, and the container's engine
    stops the job.
    """
    groups = resources.instance_groups or ()
    return Place(
        cluster=Cluster(
            hosts=resources.hosts,
            current=resources.current_host,
            groups=tuple(
                Group(name=group.instance_group_name, instance_type=group.instance_type or "", hosts=group.hosts)
                for group in groups
            ),
            current_group=resources.current_group_name or _group_of(resources.current_host, groups),
            instance_type=resources.current_instance_type or "local",
            interface=resources.network_interface_name or "eth0",
            topology=resources.topology,
        ),
        resources=raw,
        source=source,
        stop_within_s=STOP_WITHIN_S,
        stopped_by_engine=not any(
            environ.get(name) for name in (sagemaker_variables.JOB_NAME, sagemaker_variables.JOB_ARN)
        ),
        stopped_is_success=True,
    )


def _group_of(host: str, groups: tuple[InstanceGroup, ...]) -> str:
    """Return the group that lists *host*, for documents without current_group_name."""
    return next((group.instance_group_name for group in groups if host in group.hosts), HOMOGENEOUS)
