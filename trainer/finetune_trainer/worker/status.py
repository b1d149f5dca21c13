"""The agent's HTTP port: `/metrics`, `/progress` and `/healthz`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from finetune_trainer.worker.channel import Endpoint, port_in_use
from finetune_trainer.worker.metrics import RunCollector
from finetune_trainer.worker.progress import Progress

_LOOPBACK = "127.0.0.1"
_STUCK_SECONDS = 60.0
_POLL_SECONDS = 0.1
_SLOW_CLIENT_SECONDS = 10.0


class StatusServer:
    """Serves a run's state from threads of its own, so that a scrape never waits for the agent.

    Args:
        port: the port on every interface, as a pod needs it; 0 is any free port, for this machine only.
        progress: gives the current state.

    Raises:
        RunError: the port is taken or may not be used.
    """

    def __init__(self, port: int, progress: Callable[[], Progress]) -> None:
        self._beat = time.monotonic()
        registry = CollectorRegistry()
        registry.register(RunCollector(progress))

        class Handler(_Handler):
            metrics = registry
            state = staticmethod(progress)
            stuck = staticmethod(lambda: time.monotonic() - self._beat > _STUCK_SECONDS)

        try:
            self._server = _Server(port, Handler)
        except OSError as error:
            host = "0.0.0.0" if port else _LOOPBACK  # noqa: S104 - only named here
            raise port_in_use(Endpoint(host, port), "metrics", error) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="status", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is served."""
        port: int = self._server.server_address[1]
        return port

    def beat(self) -> None:
        """Say that the agent's loop still turns; without it `/healthz` turns to 503 after a minute."""
        self._beat = time.monotonic()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._dual = bool(port) and socket.has_dualstack_ipv6()
        if self._dual:
            self.address_family = socket.AF_INET6
        super().__init__((_LOOPBACK if port == 0 else "", port), handler)

    def server_bind(self) -> None:
        if self._dual:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # The HTTP server's own version also looks the host's name up, which may take long and serves nothing.
        TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    metrics: CollectorRegistry
    state: Callable[[], Progress]
    stuck: Callable[[], bool]
    timeout = _SLOW_CLIENT_SECONDS
    server_version = "finetune-worker"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, content_type, encode(self.metrics))
        elif path == "/progress":
            self._answer(HTTPStatus.OK, "application/json", self.state().model_dump_json().encode())
        elif path == "/healthz":
            status = HTTPStatus.SERVICE_UNAVAILABLE if self.stuck() else HTTPStatus.OK
            self._answer(status, "text/plain; charset=utf-8", f"{status.phrase}\n".encode())
        else:
            self._answer(
                HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"see /metrics /progress /healthz\n"
            )

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the standard library's
        """Scrapes are not news."""
