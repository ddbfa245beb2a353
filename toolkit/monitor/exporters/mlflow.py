"""A run in MLflow, by mlflow-skinny: one for the job, from its leader host.

The metrics of the lowest rank keep their name; those of others are NAME/rank-N. The run ends as "FINISHED" when the
exporter ends: MLflow then shows that no more values come, not how the job ended.

MLflow refuses a whole batch because of one name or value: names are changed before, and a batch that is refused is sent
by halves until the item that it refuses stands alone. A store of files keeps "loss" as a file and "loss/rank-1" in a
folder of the same name; there, "." takes the place of "/".
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Names, Refusals, missing

SYSTEM_EVERY_S = 10.0
BATCH = 1000  # What MLflow's log-batch takes.
# Of mlflow/utils/validation.py (3.17): letters, digits and these; at most 250 characters, of which a rank takes some.
_REFUSED = re.compile(r"[^\w\-. /:]")
MOST_NAME = 230
# Codes of errors that are due to an item, not to the server.
_OF_AN_ITEM = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


class MLflow:
    """Sends metrics to a tracking server or store."""

    def __init__(self, config: ExportsConfig) -> None:
        """Begin a run named after the job. Address and credentials beyond the URI come from MLflow's own variables.

        Raises:
            UserError: mlflow is not installed.
            Exception: whatever MLflow raises if the server does not answer.
        """
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        except ImportError as error:
            raise missing("mlflow-skinny", "mlflow", error) from None
        self._metric = Metric
        is_tree = urlsplit(config.exports.mlflow_uri or "").scheme in ("", "file")
        self._names = Names("mlflow", clean, is_tree=is_tree, most=MOST_NAME)
        self._rank = "{}.rank-{}" if is_tree else "{}/rank-{}"
        self._refusals = Refusals("mlflow")
        self._client = MlflowClient(tracking_uri=config.exports.mlflow_uri)
        experiment = self._client.get_experiment_by_name(config.exports.mlflow_experiment)
        setting = (
            experiment.experiment_id if experiment else self._client.create_experiment(config.exports.mlflow_experiment)
        )
        tags = {"toolkit.host": config.host, "toolkit.attempt": str(config.attempt)}
        self._run = self._client.create_run(setting, run_name=config.job or None, tags=tags).info.run_id
        self._lowest: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._began_s: float | None = None
        self._system_s = 0.0

    def samples(self, new: Sequence[Sample]) -> None:
        self._send([(self._key(sample), sample.value, sample.time_s, sample.step) for sample in new])

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        """Send the sample, at most one in 10 s; its step is the seconds since the first."""
        if time_s - self._system_s < SYSTEM_EVERY_S:
            return
        self._system_s = time_s
        self._began_s = time_s if self._began_s is None else self._began_s
        step = int(time_s - self._began_s)
        rows = [(f"system/{name}", value) for name, value in values.items() if value == value]
        self._send([(self._names.of(name), value, time_s, step) for name, value in rows])

    def close(self) -> None:
        self._client.set_terminated(self._run, "FINISHED")

    def _send(self, rows: Sequence[tuple[str, float, float, int | None]]) -> None:
        metrics = []
        for key, value, time_s, step in rows:
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
            metrics.append(self._metric(key, value, int(time_s * 1000), count if step is None else step))
        for start in range(0, len(metrics), BATCH):
            self._log(metrics[start : start + BATCH])

    def _log(self, metrics: list[Any]) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self._run, metrics=metrics)
        except MlflowException as error:
            if error.error_code not in _OF_AN_ITEM:
                raise
            if len(metrics) == 1:
                self._refusals.note(metrics[0].key, error)
                return
            middle = len(metrics) // 2
            self._log(metrics[:middle])
            self._log(metrics[middle:])

    def _key(self, sample: Sample) -> str:
        rank = 0 if sample.rank is None else sample.rank
        lowest = self._lowest.setdefault(sample.name, rank)
        name = self._names.of(sample.name)
        return name if rank == lowest else self._names.of(self._rank.format(name, rank))


def clean(name: str) -> str:
    """Return a name that MLflow takes: of allowed characters, and a path that leads nowhere else."""
    parts = _REFUSED.sub("_", name).split("/")
    return posixpath.join("", *(part if part.strip(".") else part.replace(".", "_") for part in parts if part))
