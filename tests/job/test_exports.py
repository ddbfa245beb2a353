"""Exports: the places for metrics besides the job's own files."""

from toolkit.job.exports import Exports


def test_a_host_runs_what_is_set_and_of_these_trackers_get_the_end() -> None:
    exports = Exports(prometheus_port=9000, mlflow_uri="file:///runs", otlp_endpoint="http://collector:4318")

    assert exports.names() == ("prometheus", "mlflow", "otel")
    assert exports.trackers() == ("mlflow", "otel")
    assert Exports().names() == ()
