"""A run in MLflow, by mlflow-skinny: one for the job, from its leader host.

The metrics of the lowest rank keep their name; those of others are NAME/rank-N. The run ends as "FINISHED" when the
exporter ends: MLflow then shows that no more values come, not how the job ended.
"""

from collections.abc import Mapping, Sequence

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import missing

SYSTEM_EVERY_S = 10.0
BATCH = 1000  # What MLflow's log-batch takes.


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
        self._client = MlflowClient(tracking_uri=config.exports.mlflow_uri)
        experiment = self._client.get_experiment_by_name(config.exports.mlflow_experiment)
        where = (
            experiment.experiment_id if experiment else self._client.create_experiment(config.exports.mlflow_experiment)
        )
        tags = {"toolkit.host": config.host, "toolkit.attempt": str(config.attempt)}
        self._run = self._client.create_run(where, run_name=config.job or None, tags=tags).info.run_id
        self._lowest: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._began_s: float | None = None
        self._system_s = 0.0

    def samples(self, new: Sequence[Sample]) -> None:
        self._send([(self._key(each), each.value, each.time_s, each.step) for each in new])

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        """Send the sample, at most one in 10 s; its step is the seconds since the first."""
        if time_s - self._system_s < SYSTEM_EVERY_S:
            return
        self._system_s = time_s
        self._began_s = time_s if self._began_s is None else self._began_s
        step = int(time_s - self._began_s)
        self._send([(f"system/{name}", value, time_s, step) for name, value in values.items() if value == value])

    def close(self) -> None:
        self._client.set_terminated(self._run, "FINISHED")

    def _send(self, rows: Sequence[tuple[str, float, float, int | None]]) -> None:
        metrics = []
        for key, value, time_s, step in rows:
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
            metrics.append(self._metric(key, value, int(time_s * 1000), count if step is None else step))
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + BATCH])

    def _key(self, sample: Sample) -> str:
        rank = 0 if sample.rank is None else sample.rank
        lowest = self._lowest.setdefault(sample.name, rank)
        return sample.name if rank == lowest else f"{sample.name}/rank-{rank}"
