"""An HTTP server of a thread for each request, as parts of a system that stand in for others need one."""

from __future__ import annotations

import socket
from http.server import ThreadingHTTPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """Serves on, whoever breaks a connection."""

    daemon_threads = True
    request_queue_size = 128

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection that sends at once. The body of an answer, a second write after its head, would otherwise wait
        40 ms for the client to acknowledge the head.
        """
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients and proxies break connections: that is no error of ours."""
