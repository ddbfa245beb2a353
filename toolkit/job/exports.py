"""Where a job's metrics go besides its own files, and what `train` tells the process that sends them."""

from pathlib import Path

from toolkit.records import Record

NAME = "exports-config.json"
LATEST = "latest-sample.json"


class Exports(Record, frozen=True, kw_only=True):
    """Each is off unless it is given. `prometheus_port`: where Prometheus scrapes this host, at `prometheus_address`.
    `tensorboard`: the folder for event files. `mlflow_uri`: the tracking server or store; None: no MLflow."""

    prometheus_port: int | None = None
    prometheus_address: str = "0.0.0.0"
    tensorboard: Path | None = None
    mlflow_uri: str | None = None
    mlflow_experiment: str = "Default"

    def names(self, *, leader: bool) -> tuple[str, ...]:
        """Return the exporters that a host runs; MLflow's run belongs to the *leader* host alone."""
        asked = {
            "prometheus": self.prometheus_port is not None,
            "tensorboard": self.tensorboard is not None,
            "mlflow": self.mlflow_uri is not None and leader,
        }
        return tuple(name for name, wanted in asked.items() if wanted)


class ExportsConfig(Record, frozen=True, kw_only=True):
    """What the exporters of one attempt need. `latest`: the file with the monitor's newest sample, None: no monitor.
    `skip_bytes`: of the file of metrics, which an earlier attempt has written."""

    exports: Exports
    job: str
    host: str
    attempt: int
    metrics: Path
    latest: Path | None = None
    skip_bytes: int = 0
