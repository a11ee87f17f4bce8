"""Traces by OpenTelemetry: spans of calls, commits, queries and rounds, from client to server.

Spans are recorded if the program has set up OpenTelemetry, and in our own processes if `OTEL_EXPORTER_OTLP_ENDPOINT`
names a collector. Otherwise `span` does nothing and OpenTelemetry is not imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Literal

from lakestore.release import wheel_with

BRIDGE = "bridge"
_PROCESS = re.compile(r"/[^/]+/[0-9]+\Z")


def name_of(kind: str, name: str, host: str, pid: int) -> str:
    """The name under which a process reports its work, as in `bridge/orders/host-1/4711`."""
    return f"{kind}/{name}/{host}/{pid}"


def thing_of(reporter: str) -> str:
    """The name of a reporter without host and process. All processes with the same work share it."""
    return _PROCESS.sub("", reporter)


def detail_of(value: Any) -> dict[str, Any]:
    """The known fields of a report's detail whose values have the right type. Empty if `value` is no object."""
    if not isinstance(value, Mapping):
        return {}
    return {name: value[name] for name, fits in DETAIL.items() if name in value and fits(value[name])}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _by_name(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(fits(each) for each in value.values())


DETAIL: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("records", "bytes", "commits"), _is_count),
    **dict.fromkeys(("rows", "rejected", "passed", "unread", "lag"), _by_name(_is_count)),
    "waiting": _is_text,
    "halted": _by_name(_is_text),
}
"""Field of a report's detail to the check of its type."""


log = logging.getLogger("lakestore.tracing")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
LIBRARY = "lakestore"
Kind = Literal["INTERNAL", "SERVER", "CLIENT"]
Metadata = Sequence[tuple[str, str | bytes]]


def is_on() -> bool:
    """True if this process records spans."""
    api = sys.modules.get("opentelemetry.trace")
    return api is not None and _is_set_up(api)


def _is_set_up(api: Any) -> bool:
    return not isinstance(api.get_tracer_provider(), (api.ProxyTracerProvider, api.NoOpTracerProvider))


def span(name: str, kind: Kind = "INTERNAL", **attributes: Any) -> AbstractContextManager[Any]:
    """A span around a block; it records an error that leaves the block. Does nothing if tracing is off."""
    return _span(name, kind, attributes) if is_on() else contextlib.nullcontext()


@contextlib.contextmanager
def _span(name: str, kind: Kind, attributes: Mapping[str, Any]) -> Iterator[None]:
    from opentelemetry import trace

    told = {f"lakestore.{key}": value for key, value in attributes.items()}
    tracer = trace.get_tracer(LIBRARY)
    with tracer.start_as_current_span(f"lakestore.{name}", kind=trace.SpanKind[kind], attributes=told):
        yield


def note(**attributes: Any) -> None:
    """Add attributes to the current span."""
    if is_on():
        from opentelemetry import trace

        current = trace.get_current_span()
        for key, value in attributes.items():
            current.set_attribute(f"lakestore.{key}", value)


def headers() -> Metadata:
    """Metadata with which the other end of a call continues this trace."""
    if not is_on():
        return ()
    from opentelemetry import propagate

    carried: dict[str, str] = {}
    propagate.inject(carried)
    return tuple(carried.items())


@contextlib.contextmanager
def joined(metadata: Metadata) -> Iterator[None]:
    """A block whose spans belong to the trace in a call's metadata."""
    if not is_on():
        yield
        return
    from opentelemetry import context, propagate

    carried = {name: value for name, value in metadata if isinstance(value, str)}
    token = context.attach(propagate.extract(carried))
    try:
        yield
    finally:
        context.detach(token)


@cache
def begin(service: str) -> None:
    """Send the spans of this process to the collector that the environment names. Does nothing if it names none."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        log.warning("a collector of traces is named, and traces need packages (%s): %s", error, wheel_with("otel"))
        return
    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", service)}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
