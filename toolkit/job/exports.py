"""The targets of a job's metrics besides its own files, and the configuration of the process that sends them."""

from pathlib import Path

from toolkit.records import Record

NAME = "exports-config.json"
LAST_NAME = "exports-last-config.json"
LATEST = "latest-sample.json"
# Each has a run for the whole job, which gets a summary at the job's end.
TRACKERS = ("mlflow", "wandb", "trackio", "otel")


class Exports(Record, frozen=True, kw_only=True):
    """The exporters of a job's metrics. Each is off unless it is given."""

    prometheus_port: int | None = None
    """The port at which Prometheus scrapes this host."""
    prometheus_address: str = "0.0.0.0"
    """The address of that port."""
    tensorboard: Path | None = None
    """The folder for event files."""
    mlflow_uri: str | None = None
    """The tracking server or store; None: no MLflow."""
    mlflow_experiment: str = "Default"
    """The experiment that gets the run."""
    wandb_project: str | None = None
    """The project of Weights & Biases; None: no W&B."""
    trackio_project: str | None = None
    """The project of Trackio; None: no Trackio."""
    otlp_endpoint: str | None = None
    """The base URL of an OTLP/HTTP receiver; None: no OpenTelemetry."""
    run: str = ""
    """The ID of the job's run in each tracker; "": the job's name."""

    def names(self) -> tuple[str, ...]:
        """Return the exporters that each host runs."""
        is_on = {
            "prometheus": self.prometheus_port is not None,
            "tensorboard": self.tensorboard is not None,
            "mlflow": self.mlflow_uri is not None,
            "wandb": self.wandb_project is not None,
            "trackio": self.trackio_project is not None,
            "otel": self.otlp_endpoint is not None,
        }
        return tuple(name for name, enabled in is_on.items() if enabled)

    def trackers(self) -> tuple[str, ...]:
        """Return those of them that have a run, to which the job's end belongs."""
        return tuple(name for name in self.names() if name in TRACKERS)


class ExportsConfig(Record, frozen=True, kw_only=True):
    """The configuration of the exporters of one attempt, or of their last processes after the last attempt."""

    exports: Exports
    job: str
    """The job's name."""
    host: str
    """This host's name."""
    is_leader: bool = True
    """This host makes the run, and ends it."""
    hosts: int = 1
    """How many hosts the job has."""
    has_job_ranks: bool = True
    """Ranks are counted over the whole job; else each host runs the script by itself, as its rank 0."""
    run: str
    """The ID of the job's run, the same on all hosts and in all attempts."""
    attempt: int
    """The number of the attempt, 1 for the first."""
    metrics: Path
    """The file of metrics."""
    output: Path
    """The job's output folder."""
    state: Path
    """The folder in which each exporter keeps what it has sent, for its next process."""
    latest: Path | None = None
    """The file with the monitor's newest sample, None: no monitor."""
    skip_bytes: int = 0
    """The length of the file of metrics that an earlier run has written."""
    outcome: Path | None = None
    """The outcome of the job, for the last process; None: an attempt runs."""
