"""Where a job's metrics go besides its own files, and what `train` tells the process that sends them."""

from pathlib import Path

from toolkit.records import Record

NAME = "exports-config.json"
LATEST = "latest-sample.json"


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

    def names(self, *, leader: bool) -> tuple[str, ...]:
        """Return the exporters that a host runs; MLflow's run belongs to the *leader* host alone."""
        is_on = {
            "prometheus": self.prometheus_port is not None,
            "tensorboard": self.tensorboard is not None,
            "mlflow": self.mlflow_uri is not None and leader,
        }
        return tuple(name for name, enabled in is_on.items() if enabled)


class ExportsConfig(Record, frozen=True, kw_only=True):
    """The configuration of the exporters of one attempt."""

    exports: Exports
    job: str
    """The job's name."""
    host: str
    attempt: int
    """The number of the attempt."""
    metrics: Path
    """The file of metrics."""
    latest: Path | None = None
    """The file with the monitor's newest sample, None: no monitor."""
    skip_bytes: int = 0
    """The length of the file of metrics that an earlier attempt has written."""
