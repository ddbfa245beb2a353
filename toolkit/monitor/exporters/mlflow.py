"""A run in MLflow, by mlflow-skinny: one for the job, with the metrics of all its hosts.

The leader host makes the run, with a tag that has the job's ID; the other hosts, later attempts, and a job that is
started again under its name find the run by that tag. The metrics of the leader's lowest rank keep their name; those of
others are NAME/rank-N.

MLflow refuses a whole batch because of one name or value: names are changed before, and a batch that is refused is sent
by halves until the item that it refuses stands alone. A store of files keeps "loss" as a file and "loss/rank-1" in a
folder of the same name; there, "." takes the place of "/".
"""

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Names, NotYetError, Refusals, ending, missing, system_front
from toolkit.monitor.exporters.kept import Kept
from toolkit.monitor.exporters.summary import Summary

RUN_TAG = "toolkit.run"
BATCH = 1000  # What MLflow's log-batch takes.
# Of mlflow/utils/validation.py (3.17): letters, digits and these; at most 250 characters, of which a rank takes some.
_REFUSED = re.compile(r"[^\w\-. /:]")
MOST_NAME = 230
MOST_TAG = 5000
STATUS = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# Codes of errors that are due to an item, not to the server.
_OF_AN_ITEM = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


class MLflow:
    """Sends metrics to a tracking server or store."""

    def __init__(self, config: ExportsConfig, kept: Kept) -> None:
        """Begin or find the run. Address and credentials beyond the URI come from MLflow's own variables.

        Raises:
            UserError: mlflow is not installed.
            NotYetError: the leader host has not made the run yet.
            Exception: whatever MLflow raises if the server does not answer.
        """
        # A request that fails is sent again by the exporter's process, which else could not say so for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        except ImportError as error:
            raise missing("mlflow-skinny", "mlflow", error) from None
        self._metric = Metric
        is_tree = urlsplit(config.exports.mlflow_uri or "").scheme in ("", "file")
        self._names = Names("mlflow", clean, kept.names, is_tree=is_tree, most=MOST_NAME)
        self._separator = "." if is_tree else "/"
        self._refusals = Refusals("mlflow")
        self._config, self._kept = config, kept
        self._client = MlflowClient(tracking_uri=config.exports.mlflow_uri)
        self._run = kept.run = kept.run or self._find_run()

    def _find_run(self) -> str:
        """Return the ID of the job's run; the leader makes it if there is none.

        Raises:
            NotYetError: there is none.
        """
        config, client = self._config, self._client
        experiment = client.get_experiment_by_name(config.exports.mlflow_experiment)
        if experiment is None and not config.is_leader:
            raise NotYetError
        place = experiment.experiment_id if experiment else client.create_experiment(config.exports.mlflow_experiment)
        name = config.run.replace("'", "_")
        of_the_job = client.search_runs(
            [place], f"tags.`{RUN_TAG}` = '{name}'", max_results=1, order_by=["attributes.start_time DESC"]
        )
        if of_the_job:
            run: str = of_the_job[0].info.run_id
            if config.is_leader:
                client.update_run(run, status="RUNNING")
            return run
        if not config.is_leader:
            raise NotYetError
        made: str = client.create_run(place, run_name=config.job or None, tags={RUN_TAG: name}).info.run_id
        return made

    def samples(self, new: Sequence[Sample]) -> None:
        self._send([(self._key(sample), sample.value, sample.time_s, sample.step or 0) for sample in new])

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        """Send the sample; its step is the seconds since the job's first attempt began."""
        step = max(int(time_s - self._kept.began_s), 0)
        front = system_front(self._config)
        rows = [(f"{front}/{name}", value) for name, value in values.items() if value == value]
        self._send([(self._names.of(name), value, time_s, step) for name, value in rows])

    def finish(self, summary: Summary) -> None:
        """Send the end as tags: of the job from the leader, which also ends the run; of others their findings."""
        from mlflow.entities import RunTag

        fields = summary.fields()
        if not self._config.is_leader:
            fields = {f"findings.{self._config.host}": fields["findings"]} if "findings" in fields else {}
        tags = [RunTag(f"toolkit.{name}", str(value)[:MOST_TAG]) for name, value in fields.items()]
        if tags:
            self._client.log_batch(self._run, tags=tags)
        if self._config.is_leader:
            self._client.set_terminated(self._run, STATUS[summary.outcome.status])

    def close(self) -> None:
        pass

    def _send(self, rows: Sequence[tuple[str, float, float, int]]) -> None:
        metrics = [self._metric(key, value, int(time_s * 1000), step) for key, value, time_s, step in rows]
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
        name, last = self._names.of(sample.name), ending(self._config, self._kept, sample)
        return self._names.of(f"{name}{self._separator}{last}") if last else name


def clean(name: str) -> str:
    """Return a name that MLflow takes: of allowed characters, and a path that leads nowhere else."""
    parts = _REFUSED.sub("_", name).split("/")
    return posixpath.join("", *(part if part.strip(".") else part.replace(".", "_") for part in parts if part))
