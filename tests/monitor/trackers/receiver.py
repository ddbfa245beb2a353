"""A receiver of OTLP/HTTP that parses what it gets by OpenTelemetry's own messages.

No collector is in PyPI, Debian or npm (seen 2026-11).
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """Listens on a port of the loopback from its making to `close`."""

    def __init__(self, port: int) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/metrics":
                    receiver.metrics.append(ExportMetricsServiceRequest.FromString(content))
                else:
                    assert self.path == "/v1/traces"
                    receiver.traces.append(ExportTraceServiceRequest.FromString(content))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def points(self) -> Iterator[tuple[str, str, dict[str, Any], float, int]]:
        """Yield host, name, attributes, value and time of each point, in the order in which they came."""
        for request in self.metrics:
            for resource in request.resource_metrics:
                host = attributes(resource.resource.attributes)["host.name"]
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for point in metric.gauge.data_points:
                            value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
                            yield host, metric.name, attributes(point.attributes), value, point.time_unix_nano

    def spans(self) -> list[Any]:
        """Return all spans."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(pairs: Any) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
