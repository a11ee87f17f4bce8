"""Troubles between an object store and all who use it, the server, the presenter, Spark and foreign engines."""

from __future__ import annotations

from jepsen.nemeses.catalog import Http

STORE = Http("store", frozenset({"store"}), lambda system: system.store.proxy if system.store else None)
