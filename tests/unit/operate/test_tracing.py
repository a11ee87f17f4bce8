"""Spans of a call lead from the client through the server; without a collector there are none, at no cost."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import lakestore as ls
from lakestore.errors import NotFound
from lakestore.wire import tracing

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """OpenTelemetry, set up as a program does it."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield kept
    provider.shutdown()


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {f"{each.name.removeprefix('lakestore.')} {each.kind.name}": each for each in spans.get_finished_spans()}


def test_a_commit_is_one_trace_from_the_client_to_the_journal(lake: ls.Lake, spans: InMemorySpanExporter) -> None:
    table = lake.create_table("a.t", SCHEMA, primary_key=["id"])
    spans.clear()
    table.upsert([{"id": 1}])
    found = by_name(spans)
    client, server = found["Commit CLIENT"], found["Commit SERVER"]
    assert server.parent is not None
    assert client.context is not None
    assert server.parent.span_id == client.context.span_id
    for name in ("decode INTERNAL", "write INTERNAL"):
        inner = found[name].parent
        assert inner is not None
        assert server.context is not None
        assert inner.span_id == server.context.span_id


def test_the_calls_of_a_query_are_in_its_trace(lake: ls.Lake, spans: InMemorySpanExporter) -> None:
    lake.create_table("a.t", SCHEMA, primary_key=["id"]).upsert([{"id": 1}])
    spans.clear()
    lake.sql("SELECT sum(id) FROM a.t").to_arrow()
    found = by_name(spans)
    assert found["sql INTERNAL"].attributes == {"lakestore.text": "SELECT sum(id) FROM a.t"}
    context = found["sql INTERNAL"].context
    assert context is not None
    traces = {name: each.context.trace_id for name, each in found.items() if each.context}
    traces.pop("ReleaseLease SERVER", None)  # nobody waits for it: it is no part of the query
    assert set(traces.values()) == {context.trace_id}
    assert "Plan SERVER" in found


def test_an_error_is_its_spans(lake: ls.Lake, spans: InMemorySpanExporter) -> None:
    with pytest.raises(NotFound):
        lake.table("a.absent")
    asked = [each for name, each in by_name(spans).items() if name.startswith("GetTable")]
    assert [each.status.is_ok for each in asked] == [False, False]


def test_nothing_is_imported_and_nothing_made_where_nobody_set_it_up() -> None:
    program = (
        "import sys; from lakestore.wire import tracing; tracing.begin('x')\n"
        "with tracing.span('a'): tracing.note(b=1)\n"
        "assert not tracing.is_on() and not tracing.headers()\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in tracing.ENDPOINTS}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_a_command_sends_its_spans_to_the_collector_that_the_environment_names() -> None:
    came: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(self.path.encode() + self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        command = [sys.executable, "-m", "lakestore", "tables", "--server", "127.0.0.1:9"]
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        subprocess.run(command, check=False, env=environment, capture_output=True)
        program = "from lakestore.wire import tracing; tracing.begin('lakestore-x')\nwith tracing.span('round'): pass"
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        collector.shutdown()
    assert any(
        each.startswith(b"/v1/traces") and b"lakestore.round" in each and b"lakestore-x" in each for each in came
    )
