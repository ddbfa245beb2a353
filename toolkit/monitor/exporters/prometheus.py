"""A port that Prometheus scrapes, by its own client.

toolkit_metric{name, host, rank}            the newest value of each metric that the script printed
toolkit_metric_step{name, host, rank}       its step
toolkit_metric_samples_total{name, ...}     how many values it had
toolkit_system{kind, name, metric, host}    the monitor's newest sample: gpu/0/used_percent is kind="gpu", name="0"
toolkit_job_info{job, host, attempt}        always 1

The name of a metric is the value of a label, which may be any text: none is changed.
"""

from collections.abc import Mapping, Sequence

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Refusals, missing
from toolkit.monitor.exporters.kept import Kept

OF = ("name", "host", "rank")


class Prometheus:
    """Serves the newest values over HTTP, at /metrics."""

    def __init__(self, config: ExportsConfig, _kept: Kept) -> None:
        """Begin to serve.

        Raises:
            UserError: prometheus_client is not installed.
            OSError: the port is taken.
        """
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
        except ImportError as error:
            raise missing("prometheus-client", "prometheus", error) from None
        self._host = config.host
        self._refusals = Refusals("prometheus")
        registry = CollectorRegistry()
        self._value = Gauge("toolkit_metric", "Newest value that the script printed", OF, registry=registry)
        self._step = Gauge("toolkit_metric_step", "Step of that value", OF, registry=registry)
        self._count = Counter("toolkit_metric_samples", "Values that the script printed", OF, registry=registry)
        of = ("kind", "name", "metric", "host")
        self._system = Gauge("toolkit_system", "Newest sample of the system monitor", of, registry=registry)
        job = Gauge("toolkit_job_info", "The job", ("job", "host", "attempt"), registry=registry)
        job.labels(config.job, config.host, str(config.attempt)).set(1)
        port = config.exports.prometheus_port or 0
        self._server, self._thread = start_http_server(port, config.exports.prometheus_address, registry)

    def samples(self, new: Sequence[Sample]) -> None:
        for sample in new:
            of = (sample.name, sample.host, "" if sample.rank is None else str(sample.rank))
            try:
                "".join(of).encode()  # One label that is no UTF-8 would fail each scrape as a whole.
                self._value.labels(*of).set(sample.value)
                self._count.labels(*of).inc()
                if sample.step is not None:
                    self._step.labels(*of).set(sample.step)
            except (ValueError, TypeError, OverflowError) as error:
                self._refusals.note(sample.name, error)

    def system(self, time_s: float, values: Mapping[str, float]) -> None:  # noqa: ARG002 - Prometheus has its own clock
        for column, value in values.items():
            kind, _, rest = column.partition("/")
            name, _, metric = rest.partition("/")
            self._system.labels(kind, name, metric, self._host).set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
