"""The processes that `train` itself runs beside the script. None of them can fail the job."""

from pathlib import Path

import toolkit
from toolkit.job.job import Job
from toolkit.job.plan import ProcessSpec, StopPolicy
from toolkit.log import Log
from toolkit.train.supervise.stop_request import STATUS_FOLDER


def beside(job: Job, run_folder: Path, attempt: int, log: Log) -> tuple[ProcessSpec, ...]:
    """Return the processes to run beside the script of *job* on this host, in its *attempt*, counted from 1."""
    return tuple(process for make in _TABLE for process in make(job, run_folder, attempt, log))


def _sidecar(job: Job, run_folder: Path, _attempt: int, _log: Log) -> tuple[ProcessSpec, ...]:
    """Return the process that reports the running job to the platform; only the leader has one."""
    if not job.sidecar or not job.cluster.is_leader:
        return ()
    metrics = job.folders.output / "metrics.jsonl"
    try:
        written_bytes = metrics.stat().st_size  # By an earlier attempt or run.
    except OSError:
        written_bytes = 0
    program = Path(toolkit.__file__).parent / "rank" / "hook" / f"{job.sidecar}.py"
    return (
        ProcessSpec(
            name=job.sidecar,
            argv=(
                job.interpreter,
                "-I",
                "-S",
                *map(str, (program, run_folder / STATUS_FOLDER, metrics, written_bytes)),
            ),
            environ=job.environ,
            cwd=run_folder,
            stop=StopPolicy(),
            optional=True,
        ),
    )


def _monitor(job: Job, run_folder: Path, attempt: int, log: Log) -> tuple[ProcessSpec, ...]:
    """Return the system monitor, if the job has one. On a full disk it runs without."""
    if job.monitor is None:
        return ()
    from toolkit.own_module import own_module
    from toolkit.train import monitored

    try:
        config = monitored.write_config(job, job.monitor, run_folder, attempt)
    except OSError as error:
        log.warning(f"{run_folder}: {error.strerror}; the system monitor does not run")
        return ()
    return (
        ProcessSpec(
            name="monitor",
            argv=(*own_module(job.interpreter, "toolkit.monitor"), str(config)),
            environ=job.environ,
            cwd=run_folder,
            stop=StopPolicy(),
            optional=True,
            gives="samples, steps or findings",
        ),
    )


def _exports(job: Job, run_folder: Path, attempt: int, log: Log) -> tuple[ProcessSpec, ...]:
    """Return the processes that send metrics to Prometheus, TensorBoard, MLflow, ..., if the job has any of these."""
    names = job.exports.names()
    if not names:
        return ()
    from toolkit.own_module import own_module
    from toolkit.train import trackers

    try:
        config = trackers.write_config(job, run_folder, attempt)
    except OSError as error:
        log.warning(f"{run_folder}: {error.strerror}; no metrics are exported")
        return ()
    return tuple(
        ProcessSpec(
            name=name,
            argv=(*own_module(job.interpreter, "toolkit.monitor.exporters"), str(config), name),
            environ=job.environ,
            cwd=run_folder,
            stop=StopPolicy(),
            optional=True,
            gives=f"metrics in {name}",
        )
        for name in names
    )


def _storage(job: Job, run_folder: Path, _attempt: int, log: Log) -> tuple[ProcessSpec, ...]:
    """Return the process that uploads checkpoints and output/intermediate, if the job has storage for these."""
    if not (job.settings.checkpoint_uri or job.spec.intermediate_uri):
        return ()
    from toolkit.train import transfers

    try:
        return (transfers.service(job, run_folder),)
    except OSError as error:
        log.warning(f"{error.filename or run_folder}: {error.strerror}; nothing is uploaded while the script runs")
        return ()


_TABLE = (_sidecar, _monitor, _exports, _storage)
