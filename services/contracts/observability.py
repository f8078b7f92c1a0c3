"""Tracing and metrics for one service process: OTLP when an endpoint is set, Prometheus text always, no global state.

Owns the OpenTelemetry SDK set-up. Receives service name, version and endpoint; hands on a tracer, instruments and the
metrics page. Does not name anything (telemetry.py does) and never blocks a request: exporters run in their own threads.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, UpDownCounter
from opentelemetry.sdk.metrics import _Gauge as Gauge
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracer, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, generate_latest

from contracts.export_health import ExportHealth, WatchedMetricExporter, WatchedSpanExporter
from contracts.telemetry import Metric

_PROPAGATOR = TraceContextTextMapPropagator()
EXPORT_TIMEOUT_S = 5
SHUTDOWN_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One process's tracer, meter and metrics page; without an endpoint spans cost one call to a no-op."""

    tracer: Tracer
    meters: MeterProvider
    spans: TracerProvider | None
    registry: CollectorRegistry
    export_health: ExportHealth | None = None

    def counter(self, metric: Metric) -> Counter:
        """The counter of a registered metric."""
        assert metric.kind == "counter", metric.name
        return self.meters.get_meter("soloist").create_counter(  # type: ignore[return-value]
            metric.name, metric.unit, metric.description
        )

    def up_down(self, metric: Metric) -> UpDownCounter:
        """The up-down counter of a registered metric."""
        assert metric.kind == "up_down", metric.name
        return self.meters.get_meter("soloist").create_up_down_counter(  # type: ignore[return-value]
            metric.name, metric.unit, metric.description
        )

    def gauge(self, metric: Metric) -> Gauge:
        """The gauge of a registered metric."""
        assert metric.kind == "gauge", metric.name
        return self.meters.get_meter("soloist").create_gauge(  # type: ignore[return-value]
            metric.name, metric.unit, metric.description
        )

    def histogram(self, metric: Metric) -> Histogram:
        """The histogram of a registered metric, with its own edges."""
        assert metric.kind == "histogram" and metric.edges, metric.name
        return self.meters.get_meter("soloist").create_histogram(  # type: ignore[return-value]
            metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.edges
        )

    def render_metrics(self) -> bytes:
        """The Prometheus text page."""
        return generate_latest(self.registry)

    def shutdown(self) -> None:
        """Flush and stop the exporters; a dead collector delays the exit by SHUTDOWN_TIMEOUT_S at most."""
        flushing = threading.Thread(target=self._flush, name="telemetry-flush", daemon=True)
        flushing.start()
        flushing.join(SHUTDOWN_TIMEOUT_S)

    def _flush(self) -> None:
        if self.spans is not None:
            self.spans.shutdown()
        self.meters.shutdown()
        if self.export_health is not None:
            self.export_health.remove()


def start_telemetry(service: str, version: str, otlp_endpoint: str | None) -> Telemetry:
    """Set up one process; otlp_endpoint is the OTLP/HTTP base URL, None switches exporting off.

    Effects: starts exporter threads and takes over the exporters' log when an endpoint is given, else nothing.
    """
    resource = Resource.create({"service.name": service, "service.version": version})
    registry = CollectorRegistry()
    readers: list[MetricReader] = [PrometheusMetricReader(registry=registry, scope_info_enabled=False)]
    spans = None
    health = None
    tracer: Tracer = NoOpTracer()
    if otlp_endpoint is not None:
        base = otlp_endpoint.rstrip("/")
        health = ExportHealth(base)
        health.install()
        span_exporter = WatchedSpanExporter(base, EXPORT_TIMEOUT_S, health)
        metric_exporter = WatchedMetricExporter(base, EXPORT_TIMEOUT_S, health)
        spans = TracerProvider(resource=resource, shutdown_on_exit=False)
        spans.add_span_processor(BatchSpanProcessor(span_exporter, schedule_delay_millis=1000))
        tracer = spans.get_tracer("soloist")
        readers.append(PeriodicExportingMetricReader(metric_exporter, export_interval_millis=10_000))
    meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    return Telemetry(tracer, meters, spans, registry, health)


def inject_context(headers: dict[str, str], context: Context | None = None) -> None:
    """Add traceparent and tracestate of the current (or given) span to outgoing headers."""
    _PROPAGATOR.inject(headers, context)


def extract_context(headers: Mapping[str, str]) -> Context:
    """The caller's span context from incoming headers; empty when there is none."""
    return _PROPAGATOR.extract(dict(headers))
