"""A live server in a thread, a client that speaks plain HTTP to it, and a request."""

import dataclasses
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import floatscope as fs
from floatscope.live.requests import LIMITS, Limits
from floatscope.live.server import LiveServer
from floatscope.qa.world import World

SAMPLE = World(0).samples("rag", 1, documents=3)[0]
REQUEST = {
    "question": SAMPLE.question,
    "documents": [dataclasses.asdict(document) for document in SAMPLE.documents],
    "answers": list(SAMPLE.answers),
    "models": ["twin-llada"],
    "slots": 6,
    "steps": 6,
    "seed": 3,
}


@contextmanager
def serving(models: list[fs.Model], limits: Limits = LIMITS) -> Iterator[LiveServer]:
    with LiveServer("127.0.0.1", 0, limits) as server:
        server.open_with(models)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def connect(server: LiveServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)


def send(server: LiveServer, method: str, path: str, body: bytes | None = None, **headers: str):
    """Status, headers and the whole body of one exchange; header names have underscores for hyphens."""
    connection = connect(server)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        if body is not None and "Content_Length" not in headers:
            headers["Content_Length"] = str(len(body))
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def start_job(server: LiveServer, request: dict) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A job whose events can be read one by one, and whose connection can be closed."""
    connection = connect(server)
    connection.request("POST", "/jobs", json.dumps(request), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return connection, answer


def run_job(server: LiveServer, request: dict) -> list[dict]:
    """All events of a job."""
    connection, answer = start_job(server, request)
    with closing(connection):
        return [json.loads(line) for line in answer]


def wait_until(true) -> None:
    stop = time.monotonic() + 60
    while not true():
        assert time.monotonic() < stop, "it did not happen in time"
        time.sleep(0.01)
