"""Requests to the live server on loopback: foreign senders, broken HTTP, hostile JSON, clients that stall or flood."""

from __future__ import annotations

import copy
import io
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import floatscope as fs
from floatscope.live.requests import Limits
from floatscope.live.server import FILES, LiveServer
from tests.fuzz.damage import change_a_value
from tests.fuzz.outcomes import ACCEPTED, HANGS, LET_IN, REFUSED, SCRIPT, SILENT, TRACEBACK, Attempt
from tests.fuzz.scripts import foreign_scripts
from tests.fuzz.targets import Targets

SECONDS = 60
JOB = {
    "question": "Who founded it?",
    "documents": [{"title": "Ferrox", "text": "Ferrox was founded by Ida Ritter.", "gold": True}],
    "answers": ["Ida Ritter"],
    "models": ["twin-llada"],
    "slots": 2,
    "steps": 2,
    "seed": 0,
}
METHODS = (*"GET POST HEAD PUT DELETE OPTIONS TRACE CONNECT PATCH get <script>".split(), "A" * 9000)
PATHS = (
    "/", "/setup.json", "/jobs", "/live.js", "/../server.py", "/..%2f..%2fetc/passwd", "//etc/passwd",
    "/....//etc/passwd", "/%00", "/live.js%00.html", "/live.js/..", "/\\..\\server.py", "file:///etc/passwd", "*", "",
    "http://evil.example/",
    "/?" + "a" * 60_000, "/" + "a/" * 30_000, "/<script>document.title='ran'</script>", "/\x1b[31m", "/\xff\xfe",
)  # fmt: skip
HOSTS = (
    "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "[::1",
    "a" * 60_000,
    "evil.example#localhost", "localhost\tevil.example", "0x7f.evil", "\xff", "<script>document.title='ran'</script>",
)  # fmt: skip
ORIGINS = ("null", "http://evil.example", "https://127.0.0.1", "http://localhost.evil.example", "file://", "", "\xff")
LENGTHS = ("-1", "+5", "1.5", "5,5", "0x5", "", "²", "9" * 30, "9" * 5000, "99999999", "1", "0", " 7 ", "nan")
KINDS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/json\0")
BODIES = (
    b"", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000, b'{"question": ' + b"9" * 10_000 + b"}", b"NaN",
    b"null",
    b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b"{}" * 1000, b'"' + b"a" * 250_000 + b'"', b" " * 300_000, bytes(range(256)),
)  # fmt: skip
OWN = {"/setup.json", *FILES}


class Listening(LiveServer):
    """Keeps what went wrong in its threads."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            print("Traceback:", repr(sys.exc_info()[1]), file=sys.stderr)


@contextmanager
def listening() -> Iterator[Listening]:
    with Listening("127.0.0.1", 0, Limits(waiting=2)) as server:
        server.open_with([fs.load("twin-llada")])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def attempts(rng: random.Random, folder: Path, targets: Targets) -> Iterator[Attempt]:
    """Endless; after each attempt an honest client must be served at once."""
    doers: tuple[Callable[[random.Random, Listening], tuple[str, str]], ...]
    doers = (foreign_sender, odd_request, hostile_job, hostile_job, wrong_length, header_flood, half_sent, many_at_once)
    with listening() as server:
        page = own_page(server)
        while True:
            do, said = rng.choice(doers), io.StringIO()
            with redirect_stderr(said):
                try:
                    what, outcome = do(rng, server)
                    found = own_page(server)
                except TimeoutError:
                    what, outcome, found = do.__name__, HANGS, page
            if found != page:
                outcome = SILENT if found else HANGS
            if "Traceback" in said.getvalue():
                outcome = TRACEBACK
            yield Attempt(f"{do.__name__}: {what}"[:300], outcome, said.getvalue()[-1500:])


def foreign_sender(rng: random.Random, server: Listening) -> tuple[str, str]:
    """A page of another site, or a name that was bound to this address."""
    method, path = rng.choice((("GET", "/"), ("GET", "/setup.json"), ("POST", "/jobs")))
    headers = {"Host": rng.choice(HOSTS)} if rng.random() < 0.5 else {"Origin": rng.choice(ORIGINS)}
    answer = exchange(server, request(server, method, path, headers, json.dumps(JOB).encode()))
    return f"{method} {path} {headers}", LET_IN if status(answer) == 200 else judge(answer)


def odd_request(rng: random.Random, server: Listening) -> tuple[str, str]:
    """Methods and paths that are not served, and lines that are no HTTP."""
    if rng.random() < 0.2:
        line = rng.choice(
            (b"", b"\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00", rng.randbytes(200))
        )
        return repr(line[:60]), judge(exchange(server, line + b"\r\n\r\n"))
    method, path = rng.choice(METHODS), rng.choice(PATHS)
    answer = exchange(server, request(server, method, path, {}, None))
    let_in = status(answer) == 200 and (method, path.partition("?")[0]) not in {("GET", own) for own in OWN}
    return f"{method[:20]} {path[:60]}", LET_IN if let_in else judge(answer)


def hostile_job(rng: random.Random, server: Listening) -> tuple[str, str]:
    """A body that is no JSON, is huge, or asks for what nobody offers."""
    if rng.random() < 0.3:
        body = rng.choice(BODIES)
        return repr(body[:40]), judge(exchange(server, request(server, "POST", "/jobs", {}, body)))
    table: dict[str, Any] = copy.deepcopy(JOB)
    where = ",".join(change_a_value(rng, table) for _ in range(rng.choice((1, 1, 2, 3))))
    return where, judge(exchange(server, request(server, "POST", "/jobs", {}, json.dumps(table).encode())))


def wrong_length(rng: random.Random, server: Listening) -> tuple[str, str]:
    """A length that is no number or not the body's, another type, another encoding of the body."""
    headers = rng.choice(
        (
            {"Content-Length": rng.choice(LENGTHS)},
            {"Content-Type": rng.choice(KINDS)},
            {"Transfer-Encoding": "chunked"},
            {"Content-Encoding": "gzip"},
            {"Expect": "100-continue"},
        )
    )
    answer = exchange(server, request(server, "POST", "/jobs", headers, json.dumps(JOB).encode()))
    return str(headers)[:100], judge(answer)


def header_flood(rng: random.Random, server: Listening) -> tuple[str, str]:
    """More headers than anyone sends, or one that does not end."""
    flood = {f"X-{number}": "x" * rng.choice((1, 1000)) for number in range(rng.choice((50, 500, 20_000)))}
    headers = rng.choice((flood, {"Cookie": "x" * 200_000}, {"X-" + "y" * 70_000: "z"}, {"A": "b\r\n c\r\n\td"}))
    return f"{len(headers)} headers", judge(exchange(server, request(server, "GET", "/", headers, None)))


def half_sent(rng: random.Random, server: Listening) -> tuple[str, str]:
    """A request that stops in the middle, or comes one byte at a time; the client leaves without a word."""
    whole = request(server, "POST", "/jobs", {}, json.dumps(JOB).encode())
    part = whole[: rng.randrange(1, len(whole))]
    slowly = rng.random() < 0.3
    with socket.create_connection(server.server_address[:2], timeout=SECONDS) as client:
        for byte in part[:40] if slowly else [part]:
            client.sendall(bytes([byte]) if isinstance(byte, int) else byte)
            time.sleep(0.005 * slowly)
        served = own_page(server)
    return f"{len(part)} of {len(whole)} bytes", ACCEPTED if served else HANGS


def many_at_once(rng: random.Random, server: Listening) -> tuple[str, str]:
    """Connections that say nothing, and jobs whose clients leave at once."""
    number, ask = rng.choice((20, 120)), rng.random() < 0.5
    clients = []
    try:
        for _ in range(number):
            clients.append(socket.create_connection(server.server_address[:2], timeout=SECONDS))
            if ask:
                clients[-1].sendall(request(server, "POST", "/jobs", {}, json.dumps(JOB).encode()))
        threads = threading.active_count()
    finally:
        for client in clients:
            client.close()
    return f"{number} connections, {'asking' if ask else 'silent'}", ACCEPTED if threads < 100 else HANGS


def request(server: Listening, method: str, path: str, headers: dict[str, str], body: bytes | None) -> bytes:
    """The bytes of a request; headers given replace the right ones."""
    right = {"Host": f"127.0.0.1:{server.server_address[1]}"}
    if body is not None:
        right |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (right | headers).items()), "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace") + (body or b"")


def exchange(server: Listening, sent: bytes) -> bytes:
    """All that the server answers; it may close before everything was sent."""
    with socket.create_connection(server.server_address[:2], timeout=SECONDS) as client:
        answer = b""
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(65_536):
                answer += part
        except TimeoutError:
            raise
        except OSError:
            pass
        return answer


def status(answer: bytes) -> int:
    words = answer[:200].split()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0


def judge(answer: bytes) -> str:
    """A refusal says why and runs no script; what was taken ends in an event, not in a failure."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"access-control" in head.lower():
        return LET_IN
    if (
        status(answer) != 200
        and b"text/html" in head.lower()
        and foreign_scripts(body.decode("utf-8", "replace"), allowed=())
    ):
        return SCRIPT
    if status(answer) == 200:
        return TRACEBACK if b"The run failed with" in body else ACCEPTED
    return TRACEBACK if status(answer) == 500 else REFUSED


def own_page(server: Listening) -> bytes:
    """The page as it is served to somebody who asks as a browser does; nothing where it does not come in time."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        answer = exchange(server, request(server, "GET", "/", {}, None))
        if status(answer) == 200:
            return answer.partition(b"\r\n\r\n")[2]
        time.sleep(0.05)  # all places may be taken for a moment by those who are just leaving
    return b""
