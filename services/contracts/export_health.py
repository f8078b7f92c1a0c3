"""Whether the OTLP collector takes what it is sent: one line when it stops, one when it takes all again, none between.

Owns the state of both signals and the exporters' log. Receives every export's result and the exporters' own records,
which say why and would otherwise come several times a second; starts no thread and never waits.
"""

import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

_LOG = logging.getLogger("telemetry")
_EXPORTER_LOGS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)
_QUEUE_LOG = "opentelemetry.sdk._shared_internal"
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")\]]+)")
_MAX_REASON_CHARS = 160


class ExportHealth(logging.Filter):
    """The filter on the exporters' loggers and the judge of their results; both exporters' threads call it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._lost_batches = 0
        self._reason = "no answer"
        self._has_status = False

    def install(self) -> None:
        """Effects: takes over what the exporters log until remove()."""
        for name in (*_EXPORTER_LOGS, _QUEUE_LOG):
            logging.getLogger(name).addFilter(self)

    def remove(self) -> None:
        """Undo install()."""
        for name in (*_EXPORTER_LOGS, _QUEUE_LOG):
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps the reason and drops the record; other faults of the SDK's threads pass."""
        if record.name == _QUEUE_LOG:
            return not record.getMessage().startswith("Queue full")
        arguments = record.args if isinstance(record.args, tuple) else ()
        with self._lock:
            if record.msg.startswith("Transient error") and arguments:
                self._reason, self._has_status = _shorten(arguments[0]), False
            elif record.msg.startswith("Failed to export") and len(arguments) == 3:
                _, status, reason = arguments
                self._has_status = status is not None
                self._reason = _shorten(reason) + (f" (HTTP {status})" if self._has_status else "")
            elif not record.msg.startswith("Failed to export"):
                self._reason, self._has_status = _shorten(record.getMessage()), True
        return False

    def note(self, signal: str, *, delivered: bool) -> None:
        """One export of "spans" or "metrics" ended."""
        with self._lock:
            was_failing = bool(self._failing)
            (self._failing.discard if delivered else self._failing.add)(signal)
            self._lost_batches += not delivered
            lost_batches, reason = self._lost_batches, self._reason
            what = signal if self._has_status else "spans and metrics"
            if delivered and not self._failing:
                self._lost_batches = 0
        if not delivered and not was_failing:
            _LOG.warning("%s cannot be exported to %s: %s; the service goes on without", what, self._url, reason)
        elif was_failing and not self._failing:
            _LOG.warning("exporting to %s works again; %d batches were lost", self._url, lost_batches)


class WatchedSpanExporter(OTLPSpanExporter):
    """Spans to the collector at base, with a word to health about each batch."""

    def __init__(self, base: str, timeout_s: float, health: ExportHealth) -> None:
        super().__init__(endpoint=f"{base}/v1/traces", timeout=timeout_s)
        self._health = health

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See OTLPSpanExporter."""
        result = super().export(spans)
        self._health.note("spans", delivered=result is SpanExportResult.SUCCESS)
        return result


class WatchedMetricExporter(OTLPMetricExporter):
    """Metrics to the collector at base, with a word to health about each batch."""

    def __init__(self, base: str, timeout_s: float, health: ExportHealth) -> None:
        super().__init__(endpoint=f"{base}/v1/metrics", timeout=timeout_s)
        self._health = health

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """See OTLPMetricExporter."""
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self._health.note("metrics", delivered=result is MetricExportResult.SUCCESS)
        return result


def _shorten(reason: object) -> str:
    """The system's words for a connection error, which the HTTP library wraps three times; else the text's start."""
    text = " ".join(str(reason).split())
    found = _SYSTEM_ERROR.search(text)
    return found.group(1) if found else text[:_MAX_REASON_CHARS]
