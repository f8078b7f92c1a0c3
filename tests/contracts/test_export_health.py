"""A collector that comes and goes makes two lines of log, whatever the exporters have to say meanwhile."""

import logging
import socket

import pytest
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExportResult

from contracts.export_health import ExportHealth, WatchedMetricExporter, WatchedSpanExporter
from support.otlp_receiver import OtlpReceiver


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_dead_collector_is_one_line_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dead = f"http://127.0.0.1:{closed_port()}"
    health = ExportHealth(dead)
    health.install()
    try:
        with OtlpReceiver() as receiver:
            # Long enough for one retry, whose record says why.
            assert WatchedSpanExporter(dead, 1.4, health).export([]) is SpanExportResult.FAILURE
            spans = WatchedSpanExporter(dead, 0.05, health)
            metrics = WatchedMetricExporter(dead, 0.05, health)
            for _ in range(2):
                assert spans.export([]) is SpanExportResult.FAILURE
                assert metrics.export(MetricsData([])) is MetricExportResult.FAILURE
            assert caplog.messages == [
                f"spans and metrics cannot be exported to {dead}: Connection refused; the service goes on without"
            ]
            caplog.clear()
            again = WatchedSpanExporter(receiver.endpoint, 5, health)
            assert again.export([]) is SpanExportResult.SUCCESS
            assert caplog.messages == [], "metrics still fail"
            assert WatchedMetricExporter(receiver.endpoint, 5, health).export(MetricsData([])).value == 0
        assert caplog.messages == [f"exporting to {dead} works again; 5 batches were lost"]
    finally:
        health.remove()


def test_a_collector_that_takes_no_metrics_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    health = ExportHealth("http://c")
    health.install()
    try:
        for _ in range(3):
            logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter").error(
                "Failed to export %s batch code: %s, reason: %s", "metrics", 404, "Not Found"
            )
            health.note("metrics", delivered=False)
            health.note("spans", delivered=True)
    finally:
        health.remove()
    assert caplog.messages == [
        "metrics cannot be exported to http://c: Not Found (HTTP 404); the service goes on without"
    ]
