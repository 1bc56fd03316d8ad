"""The server of the live page: fixed files, one door for jobs, and nothing else. Standard library only.

A job's answer is a stream of JSON lines that ends when the connection does. A page of another site gets nothing: the
Host must be this machine's (DNS rebinding), a request from another origin is refused, and no CORS header is ever sent.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import select
import socket
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty
from typing import Any
from urllib.parse import urlsplit

from floatscope.errors import UserError
from floatscope.live.events import denoise
from floatscope.live.examples import is_twin, sample_groups
from floatscope.live.jobs import JobQueue, LiveJob
from floatscope.live.requests import LIMITS, Limits, Refused, read_request
from floatscope.models.model import Model
from floatscope.reports.markup import asset

FILES = {
    "/": ("live.html", "live"),
    **{f"/{name}": (name, "live") for name in ("live.css", "live.js")},
    **{f"/{name}": (name, "reports") for name in ("components.css", "page.css")},
    **{f"/{name}": (name, "reports") for name in ("theme.js", "run.js", "canvas.js", "player.js", "film.js")},
}
"""Every file that is served, by its path; the names are fixed here, never taken from a request."""
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LOOK_TIME = 0.2
"""Seconds between two looks at whether the client is still there."""
_MOST_DRAINED = 8_000_000
_TOO_MANY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\n\r\n"
    b'{"sentence": "Too many connections are open. Try again in a while."}'
)


class LiveServer(ThreadingHTTPServer):
    """Binds at once; `open_with` gives it its models, then `serve_forever` serves."""

    daemon_threads = True
    request_queue_size = 64  # five, the default, keep an honest client waiting for seconds behind a crowd

    def __init__(self, host: str, port: int, limits: Limits = LIMITS) -> None:
        if not host:  # which the system reads as every interface
            raise UserError("--host is empty: give 127.0.0.1 for this machine only, or 0.0.0.0 for every interface.")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.queue = JobQueue(limits.waiting)  # first: a server that cannot bind closes itself
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = f"Port {port} of {host} is in use: stop what runs there, or choose another with --port."
            else:
                reason = f"Cannot serve on {host}, port {port}: {error.strerror or error}."
            raise UserError(reason) from error
        except OverflowError as error:
            raise UserError(f"--port {port}: a port is a number from 0 to 65535.") from error
        self.host = host
        self.limits = limits
        self._connections = threading.BoundedSemaphore(limits.connections)
        self.models: dict[str, Model] = {}
        self.setup: dict[str, Any] = {}

    def open_with(self, models: Iterable[Model]) -> None:
        """The models that the page may choose from; it knows them by name."""
        for model in models:
            if model.tokenizer is None:
                raise UserError(f"{model.name} has no tokenizer beside its weights, so text cannot be read.")
            if model.name in self.models:
                raise UserError(f"Two models are called {model.name}: the page could not tell them apart.")
            self.models[model.name] = model
        usual = 8 if all(map(is_twin, self.models)) else 32
        self.setup = {
            "models": [
                {"name": name, "kind": "arm" if model.family.is_arm else "mdm", "visibility": str(model.visibility)}
                for name, model in self.models.items()
            ],
            "samples": sample_groups(self.models),
            "limits": asdict(self.limits),
            "slots": usual,
            "steps": usual,
        }

    @property
    def everywhere(self) -> bool:
        """Whether it listens on every interface, however the host was written."""
        return ipaddress.ip_address(str(self.server_address[0])).is_unspecified

    @property
    def url(self) -> str:
        """Where the page is; a server on every interface is reached as localhost too."""
        name = "localhost" if self.everywhere else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_address[1]}/"

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this machine: an address, localhost, the host given, or its own name.

        Only a name can be rebound to another address, so the port and bare addresses may be anything.
        """
        try:
            name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
            if name in ("localhost", self.host.lower(), socket.gethostname().lower()):
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each connection, as long as there are not too many: whoever holds them open holds no more."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            request.sendall(_TOO_MANY)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Cancel the jobs and give the port back."""
        self.queue.stop()
        super().server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: LiveServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "floatscope", ""
    timeout = 60  # seconds that a client may take to send or to read a part
    body_read = False

    def do_GET(self) -> None:
        """A file of the page, or what it can choose from."""
        try:
            self._check_sender()
            path = self.path.partition("?")[0]
            if path == "/setup.json":
                self._send(200, "application/json", json.dumps(self.server.setup))
            elif path in FILES:
                name, room = FILES[path]
                self._send(200, _KINDS[name.rpartition(".")[2]], asset(name, room))
            else:
                raise Refused(404, "There is nothing here: the page is at /.")
        except Refused as refused:
            self._refuse(refused)

    def do_POST(self) -> None:
        """A job: its events are streamed until it is done or the client leaves."""
        try:
            self._check_sender()
            if self.path != "/jobs":
                raise Refused(404, "There is nothing here: jobs go to /jobs.")
            request = read_request(self._body(), self.server.models, self.server.limits)
            job = self.server.queue.submit(partial(denoise, self.server.models, request))
        except Refused as refused:
            self._refuse(refused)
        else:
            self._stream(job)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the terminal is for what went wrong in a job."""

    def _check_sender(self) -> None:
        if not self.server.knows_host(self.headers.get("Host", "")):
            raise Refused(421, "This server answers to its own name only: open the address that it printed.")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers.get('Host')}":
            raise Refused(403, "Requests from other sites are refused.")

    def _body(self) -> bytes:
        if self.headers.get_content_type() != "application/json":
            raise Refused(415, "A job is sent as application/json.")
        length, most = self._length, self.server.limits.body
        if length is None:
            raise Refused(411, "A job is sent with its Content-Length.")
        if length > most:
            raise Refused(413, f"The request has {length:,} bytes: at most {most:,} are taken.")
        self.body_read = True
        return self.rfile.read(length)

    @property
    def _length(self) -> int | None:
        """Bytes that the client says it sends; what has more digits than any length is none."""
        given = self.headers.get("Content-Length", "")
        return int(given) if re.fullmatch("[0-9]{1,18}", given) else None

    def _stream(self, job: LiveJob) -> None:
        self._start(200, "application/x-ndjson")
        try:
            while True:
                try:
                    event = job.events.get(timeout=_LOOK_TIME)
                except Empty:
                    readable, _, _ = select.select([self.connection], [], [], 0)
                    if readable and not self.connection.recv(1, socket.MSG_PEEK):
                        break
                    continue
                if event is None:
                    break
                self.wfile.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        except OSError:  # the client has left
            pass
        finally:
            self.server.queue.leave(job)
            self.close_connection = True

    def _refuse(self, refused: Refused) -> None:
        """Say why as JSON; what was still being sent is read first, or the sentence would be lost on the way."""
        left = 0 if self.body_read else min(self._length or 0, _MOST_DRAINED)
        while left > 0 and (part := self.rfile.read(min(left, 65_536))):
            left -= len(part)
        self._send(refused.status, "application/json", json.dumps({"sentence": str(refused)}))

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self._start(status, kind, len(body))
        self.wfile.write(body)

    def _start(self, status: int, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", **HEADERS}.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
