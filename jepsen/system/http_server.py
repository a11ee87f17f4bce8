"""An HTTP server of a thread for each request, as parts of a system that stand in for others need one."""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """Serves on, whoever breaks a connection."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients and proxies break connections: that is no error of ours."""
