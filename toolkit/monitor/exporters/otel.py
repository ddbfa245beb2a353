"""Metrics and spans for OpenTelemetry, over OTLP/HTTP, by its own SDK and exporter (docs/opentelemetry.md).

Each value is a data point with the time at which the script printed it, so nothing is aggregated here. Spans: the job
(from the leader host, at its end), its attempts on each host, the ends of its ranks, and of the steps one in STEP_S of
each rank, and each that saved. IDs come from the ID of the job's run, so that the spans of all hosts and attempts meet
in one trace.
"""

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from toolkit.job.exports import ExportsConfig
from toolkit.job.outcome import Outcome
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Names, missing
from toolkit.monitor.exporters.kept import Kept
from toolkit.monitor.exporters.otel_names import METRIC, MOST, clean, of_column
from toolkit.monitor.exporters.summary import Summary
from toolkit.series.step_records import SECONDS, StepRecord, StepTail

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

STEP_S = 10.0
BATCH = 2000  # Data points in a request: 4 MB is what a collector takes by default.
STEP_NAME = "toolkit.step"

Attributes = dict[str, str | int | float]


class OpenTelemetry:
    """Sends metrics and spans to a receiver, as a collector is."""

    def __init__(self, config: ExportsConfig, kept: Kept) -> None:
        """Prepare to send. Headers, certificates, time and compression come from OpenTelemetry's own variables.

        Raises:
            UserError: the SDK or its exporter is not installed.
        """
        endpoint = config.exports.otlp_endpoint
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise missing("opentelemetry-exporter-otlp-proto-http", "otel", error) from None
        self._config, self._kept = config, kept
        self._errors = _Errors()
        own: Attributes = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or config.job or config.run,
            "service.namespace": "toolkit",
            "service.instance.id": config.host,
            "host.name": config.host,
            "toolkit.run": config.run,
        }
        self._resource = Resource.create(own)
        self._scope = InstrumentationScope("toolkit")
        self._metrics = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics")
        self._spans = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
        self._names = Names("otel", clean, kept.names, most=MOST)
        self._maker = _SpanMaker(self._resource)
        self._trace = _number(config.run, 16)
        self._root = _number(f"{config.run}/job", 8)
        self._attempt = self._attempt_id(config.attempt)
        self._tail = StepTail(config.output / "monitor" / "steps")
        self._step_ends_s: dict[int, float] = {}
        self._newest_steps: dict[int | None, int] = {}
        self._unsent: list[ReadableSpan] = []

    def _attempt_id(self, attempt: int) -> int:
        return _number(f"{self._config.run}/{self._config.host}/{attempt}", 8)

    def samples(self, new: Sequence[Sample]) -> None:
        points: list[tuple[str, str, Attributes, float, float]] = []
        newest_steps = dict(self._newest_steps)
        for sample in new:
            of: Attributes = {} if sample.rank is None else {"toolkit.rank": sample.rank}
            points.append((self._names.of(METRIC + sample.name), "1", of, sample.value, sample.time_s))
            if sample.step is not None and newest_steps.get(sample.rank) != sample.step:
                newest_steps[sample.rank] = sample.step
                points.append((STEP_NAME, "{step}", of, sample.step, sample.time_s))
        self._send(points)
        self._newest_steps = newest_steps
        self._send_spans(self._new_steps())

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        points: list[tuple[str, str, Attributes, float, float]] = []
        for column, value in values.items():
            if value == value:
                named = of_column(column)
                points.append((named.name, named.unit, dict(named.attributes), value * named.scale, time_s))
        self._send(points)
        self._send_spans(self._new_steps())

    def finish(self, summary: Summary) -> None:
        """Send the spans of the attempts and of the last one's ranks, and from the leader that of the job."""
        self._send_spans(self._end_spans(summary))

    def close(self) -> None:
        self._metrics.shutdown()
        self._spans.shutdown()

    def _send(self, points: Sequence[tuple[str, str, Attributes, float, float]]) -> None:
        for start in range(0, len(points), BATCH):
            self._send_points(points[start : start + BATCH])

    def _send_points(self, points: Sequence[tuple[str, str, Attributes, float, float]]) -> None:
        from opentelemetry.sdk.metrics import export

        by_name: dict[tuple[str, str], list[Any]] = {}
        for name, unit, attributes, value, time_s in points:
            point = export.NumberDataPoint(attributes, 0, _ns(time_s), value)
            by_name.setdefault((name, unit), []).append(point)
        metrics = [
            export.Metric(name=name, description="", unit=unit, data=export.Gauge(data_points=of_it))
            for (name, unit), of_it in by_name.items()
        ]
        if not metrics:
            return
        scope = export.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        resource = export.ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")
        result = self._metrics.export(export.MetricsData(resource_metrics=[resource]))
        if result is not export.MetricExportResult.SUCCESS:
            raise ConnectionError(self._errors.newest())

    def _send_spans(self, spans: "Sequence[ReadableSpan]") -> None:
        """Send *spans*, and first those that have not arrived yet; they are sent with the next, too, if they fail."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._unsent += spans
        if not self._unsent:
            return
        if self._spans.export(self._unsent) is not SpanExportResult.SUCCESS:
            self._unsent = self._unsent[-BATCH:]
            return  # What failed with the spans fails with the metrics, too, and is said there.
        self._unsent = []

    def _new_steps(self) -> "list[ReadableSpan]":
        return [span for record in self._tail.new() for span in self._step_spans(record)]

    def _step_spans(self, record: StepRecord) -> "Iterator[ReadableSpan]":
        if record.attempt != self._config.attempt or record.step_s is None:
            return
        saved_s = record.checkpoint_s or 0.0
        if not saved_s and record.end_s < self._step_ends_s.get(record.rank, 0.0) + STEP_S:
            return
        self._step_ends_s[record.rank] = record.end_s
        of: Attributes = {"toolkit.rank": record.rank, "toolkit.step": record.step}
        seconds = {f"toolkit.{name}": getattr(record, name) for name in SECONDS if getattr(record, name) is not None}
        own = _number(f"{self._config.run}/{record.rank}/{record.attempt}/{record.step}", 8)
        yield self._span(
            "step", record.end_s - record.step_s, record.end_s, {**of, **seconds}, own=own, parent=self._attempt
        )
        if saved_s:
            yield self._span(
                "save", record.end_s - saved_s, record.end_s, of, own=_number(f"{own}/save", 8), parent=own
            )

    def _end_spans(self, summary: Summary) -> "list[ReadableSpan]":
        outcome = summary.outcome
        spans = self._attempt_spans(outcome)
        for end in outcome.exits:
            of: Attributes = {"process.pid": end.pid, "process.exit.code": end.status}
            if end.rank is not None:
                of["toolkit.rank"] = end.rank
            made = self._span(
                end.process,
                end.started_ns / 1e9,
                end.ended_ns / 1e9,
                of,
                own=_number(f"{self._attempt}/{end.process}/{end.pid}", 8),
                parent=self._attempt,
                error="" if end.ok or end.signalled else f"ended with {end.status}",
            )
            spans.append(made)
        if self._config.is_leader:
            spans.append(self._job_span(summary))
        return spans

    def _attempt_spans(self, outcome: Outcome) -> "list[ReadableSpan]":
        """Return the attempts: each begins where the one before it failed, the first with the exporter."""
        ends_s = [restart.failed_ns / 1e9 for restart in outcome.restarts]
        ends_s.append(max((end.ended_ns / 1e9 for end in outcome.exits), default=self._kept.now_s()))
        starts_s = [self._kept.began_s, *ends_s[:-1]]
        errors = [restart.message for restart in outcome.restarts]
        errors.append(outcome.cause.message if outcome.status == "failed" else "")
        return [
            self._span(
                f"attempt {number}",
                start_s,
                end_s,
                {"toolkit.attempt": number},
                own=self._attempt_id(number),
                parent=self._root,
                error=error,
            )
            for number, (start_s, end_s, error) in enumerate(zip(starts_s, ends_s, errors, strict=True), 1)
        ]

    def _job_span(self, summary: Summary) -> "ReadableSpan":
        outcome = summary.outcome
        of: Attributes = {f"toolkit.{name}": value for name, value in summary.fields().items()}
        of["process.exit.code"] = outcome.exit_code
        if outcome.cause.kind:
            of["error.type"] = outcome.cause.kind
        failed = outcome.status == "failed"
        return self._span(
            "job",
            self._kept.began_s,
            self._kept.now_s(),
            of,
            own=self._root,
            parent=None,
            error=summary.cause or "failed" if failed else "",
            events=_events(outcome),
        )

    def _span(
        self,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Attributes,
        *,
        own: int,
        parent: int | None,
        error: str = "",
        events: Sequence[tuple[str, float, Attributes]] = (),
    ) -> "ReadableSpan":
        times_s = (start_s, max(start_s, end_s))
        return self._maker.make(self._trace, own, parent, name, times_s, attributes, error, events)


def _events(outcome: Outcome) -> list[tuple[str, float, Attributes]]:
    """Return the restarts of a job, and the exception that ended it."""
    events: list[tuple[str, float, Attributes]] = [
        ("restart", restart.failed_ns / 1e9, {"toolkit.attempt": restart.attempt + 1, "toolkit.cause": restart.message})
        for restart in outcome.restarts
    ]
    cause = outcome.cause
    if cause.traceback:
        about: Attributes = {
            "exception.type": cause.message.partition(":")[0],
            "exception.message": cause.message,
            "exception.stacktrace": cause.traceback,
        }
        events.append(("exception", cause.failed_ns / 1e9, about))
    return events


class _SpanMaker:
    """Makes spans with given IDs and times, by the SDK's tracer."""

    def __init__(self, resource: Any) -> None:
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.id_generator import IdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class Given(IdGenerator):
            trace = span = 1

            def generate_trace_id(self) -> int:
                return self.trace

            def generate_span_id(self) -> int:
                return self.span

        class Ended(SpanProcessor):
            spans: "list[ReadableSpan]" = []

            def on_end(self, span: "ReadableSpan") -> None:
                self.spans.append(span)

        self._given, self._ended = Given(), Ended()
        provider = TracerProvider(
            resource=resource, id_generator=self._given, sampler=ALWAYS_ON, shutdown_on_exit=False
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("toolkit")

    def make(
        self,
        trace: int,
        own: int,
        parent: int | None,
        name: str,
        times_s: tuple[float, float],
        attributes: Attributes,
        error: str,
        events: Sequence[tuple[str, float, Attributes]],
    ) -> "ReadableSpan":
        """Return the span *own* of *trace* below *parent*."""
        from opentelemetry import trace as api
        from opentelemetry.context import Context

        self._given.trace, self._given.span = trace, own
        sampled = api.TraceFlags(api.TraceFlags.SAMPLED)
        above = (
            Context()
            if parent is None
            else api.set_span_in_context(
                api.NonRecordingSpan(api.SpanContext(trace, parent, is_remote=True, trace_flags=sampled)), Context()
            )
        )
        span = self._tracer.start_span(name, above, attributes=attributes, start_time=_ns(times_s[0]))
        for event, at_s, about in events:
            span.add_event(event, about, _ns(at_s))
        if error:
            span.set_status(api.Status(api.StatusCode.ERROR, error))
        span.end(_ns(times_s[1]))
        return self._ended.spans.pop()


class _Errors(logging.Handler):
    """Keeps what the exporters log in place of raising it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._newest: deque[str] = deque(maxlen=2)  # The reason, and that it was given up.
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._newest.append(record.getMessage())

    def newest(self) -> str:
        """Return the newest lines."""
        return " ".join(self._newest) or "the receiver refused it"


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _number(text: str, size: int) -> int:
    """Return an ID of *size* bytes that *text* alone has."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest(), "big") or 1
