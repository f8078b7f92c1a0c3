"""An OTLP/HTTP endpoint that keeps the spans it is sent. Owns a loopback port; understands traces, ignores metrics."""

import gzip
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived; ids are hexadecimal, parent_id "" at the root."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    error: bool
    attributes: dict[str, Any] = field(default_factory=dict)


class OtlpReceiver:
    """Listens between enter and exit; spans grows as batches arrive."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # http.server's name
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    receiver.spans += _parse(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT must be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def wait_for(self, names: set[str], timeout_s: float = 10.0) -> list[ReceivedSpan]:
        """All spans, once every one of these names arrived."""
        deadline_s = time.monotonic() + timeout_s
        while not names <= {span.name for span in self.spans}:
            missing = names - {span.name for span in self.spans}
            assert time.monotonic() < deadline_s, f"no span named {sorted(missing)} within {timeout_s} s"
            time.sleep(0.02)
        return list(self.spans)

    def __enter__(self) -> "OtlpReceiver":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _parse(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    received = []
    for group in request.resource_spans:
        service = next(a.value.string_value for a in group.resource.attributes if a.key == "service.name")
        for scope in group.scope_spans:
            for span in scope.spans:
                received.append(
                    ReceivedSpan(
                        service=service,
                        name=span.name,
                        kind=span.kind,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        start_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                        error=span.status.code == 2,
                        attributes={a.key: _value(a.value) for a in span.attributes},
                    )
                )
    return received


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
