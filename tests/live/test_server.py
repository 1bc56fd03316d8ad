"""The live server over real HTTP with the twins: what it streams is the trace, and what it must refuse it refuses."""

import base64
import copy
import dataclasses
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from urllib.request import urlopen

import numpy as np
import pytest

import floatscope as fs
from floatscope import cli
from floatscope.analysis.anchors import detect
from floatscope.live.events import denoise
from floatscope.live.requests import Limits, read_request
from floatscope.live.server import FILES, Handler, LiveServer
from tests.live.serving import REQUEST, SAMPLE, run_job, send, serving, start_job, wait_until

SAMPLERS = {
    "twin-llada": fs.LLaDASampler(steps=6, length=6, seed=3, mask_is_candidate=True),
    "twin-dream": fs.DreamSampler(steps=6, length=6, seed=3, alg="entropy", top_k=50, mask_is_candidate=True),
    "twin-arm": fs.AutoregressiveSampler(length=6, seed=3),
}


@pytest.fixture(scope="module")
def models():
    return [fs.load(name) for name in SAMPLERS]


@pytest.fixture(scope="module")
def server(models):
    with serving(models, Limits(waiting=2)) as running:
        yield running


@pytest.fixture
def held(server):
    """The server with a job that runs until the gate is opened."""
    gate, running = threading.Event(), threading.Event()

    def work(emit):
        running.set()
        gate.wait(30)

    server.queue.submit(work)
    assert running.wait(5)
    yield gate
    gate.set()
    wait_until(lambda: server.queue.jobs == 0)


def expected(models, name):
    """The same run without a server: the generation, its text, and the trace."""
    model = next(model for model in models if model.name == name)
    prompt = fs.build_prompt(model.tokenizer, SAMPLE.question, SAMPLE.documents, SAMPLE.answers)
    generation = fs.generate(model, prompt.ids, SAMPLERS[name])
    text = model.tokenizer.decode(generation.answer, skip_special_tokens=True).strip()
    return generation, text, fs.trace(model, prompt, SAMPLERS[name])


def assert_received(step, expected_step):
    """[layer, token] within half a level of the 65535 that the stream has."""
    scale = step["received"]["scale"]
    levels = np.frombuffer(base64.b64decode(step["received"]["data"]), "<u2").reshape(expected_step.shape)
    assert scale == pytest.approx(expected_step.max(), rel=1e-6)
    np.testing.assert_allclose(levels * (scale / 65535), expected_step, rtol=1e-6, atol=scale / 131070 * 1.001)


def assert_anchors(step, expected_step):
    assert step["anchors"] == [np.flatnonzero(row).tolist() for row in expected_step]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twin-llada", "twin-dream"])
def test_an_mdm_streams_the_steps_of_its_trace(server, models, name):
    generation, text, trace = expected(models, name)
    first, opened, *steps, finished, _, done = run_job(server, REQUEST | {"models": [name]})
    assert first == {"event": "queued", "before": 0} and done == {"event": "done"}
    [run] = opened["runs"]
    assert run["regions"] == [[r.label, r.start, r.stop] for r in trace.regions]
    assert run["tokens"][trace.slots[0] :] == [""] * 6 and run["foreseen"] == trace.steps
    assert [event["event"] for event in steps] == ["step"] * trace.steps
    anchors = detect(trace)
    commit_step, texts = {}, dict(enumerate(run["tokens"]))
    for number, event in enumerate(steps):
        assert_received(event["step"], trace.received[number])
        assert_anchors(event["step"], anchors[number])
        for slot, token, confidence, _ in event["step"].get("commits", []):
            commit_step[slot], texts[trace.slots[0] + slot] = number, token
            assert confidence == pytest.approx(trace.confidence[slot], abs=1e-4)
    assert [commit_step[slot] for slot in range(6)] == generation.commit_step.tolist()
    data = finished["data"]
    assert list(texts.values()) == data["tokens"]
    assert data["prediction"] == text and data["correct"] is (SAMPLE.answers[0] in text)
    assert len(data["steps"]) == trace.steps and data["commit_step"] == generation.commit_step.tolist()


@pytest.mark.slow
def test_the_seed_is_the_one_that_is_asked_for(models):
    """Seen in a model whose own sampler leaves something to chance."""
    model = copy.copy(models[0])
    model.family = dataclasses.replace(model.family, sampler={**model.family.sampler, "temperature": 3.0})
    prompt = fs.build_prompt(model.tokenizer, SAMPLE.question, SAMPLE.documents)
    told = []
    for seed in (3, 4):
        sampler = dataclasses.replace(SAMPLERS["twin-llada"], temperature=3.0, seed=seed)
        told.append(model.text(fs.generate(model, prompt, sampler).answer))
        events = []
        request = read_request(json.dumps(REQUEST | {"seed": seed}).encode(), [model.name])
        denoise({model.name: model}, request, events.append)
        assert events[-3]["data"]["prediction"] == told[-1]
    assert told[0] != told[1]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("The author of", " is Tilda Moreau ."), ("", " is Tilda Moreau .")])
def test_slots_stand_where_the_text_has_its_gap(server, models, before, after):
    trace = fs.trace(models[1], fs.build_canvas(models[1], before, 6, after), SAMPLERS["twin-dream"])
    asked = {"question": f"{before}{{answer}}{after}", "documents": [], "models": ["twin-dream"]}
    _, opened, *steps, finished, _, done = run_job(server, REQUEST | asked)
    [run], data = opened["runs"], finished["data"]
    sides = [*([["before", 1, 1 + trace.marks["before"].size]] if before else [])]
    start, stop = trace.slots[0], trace.slots[-1] + 1
    assert run["slots"] == data["slots"] == list(range(start, stop)) and stop - start == 6
    assert run["regions"] == [["bos", 0, 1], *sides, ["answer", start, stop], ["after", stop, len(trace.canvas)]]
    assert data["regions"] == run["regions"] and run["tokens"][start:stop] == [""] * 6
    assert [event["event"] for event in steps] == ["step"] * run["foreseen"] == ["step"] * trace.steps
    texts = run["tokens"]
    for number, event in enumerate(steps):
        assert_received(event["step"], trace.received[number])
        for slot, token, *_ in event["step"].get("commits", []):
            texts[start + slot] = token
    assert texts == data["tokens"] and done == {"event": "done"}
    assert data["prediction"] == models[1].text(trace.canvas[trace.slots])


def test_an_arm_refuses_a_gap_in_a_sentence(server):
    asked = {"question": "Who {answer} it?", "documents": [], "models": ["twin-arm"]}
    *_, error = events = run_job(server, REQUEST | asked)
    assert error["sentence"].startswith("twin-arm is autoregressive and writes at the end only: put {answer} there")
    assert [event["event"] for event in events] == ["queued", "error"]  # before anything is drawn
    *_, finished, _, done = run_job(server, REQUEST | asked | {"question": "Who founded it ? {answer}"})
    assert done == {"event": "done"} and finished["data"]["slots"][0] == len(finished["data"]["tokens"]) - 6


def test_an_arm_streams_its_tokens_and_ends_with_its_attention(server, models):
    generation, text, trace = expected(models, "twin-arm")
    *_, done = events = run_job(server, REQUEST | {"models": ["twin-arm"]})
    tokens = [event["commits"] for event in events if event["event"] == "token"]
    [finished] = [event for event in events if event["event"] == "finished"]
    assert done == {"event": "done"}
    assert [commits[0][:2] for commits in tokens] == [
        [slot, finished["data"]["tokens"][trace.slots[0] + slot]] for slot in range(len(generation.answer))
    ]
    assert finished["data"]["prediction"] == text
    assert len(finished["data"]["steps"]) == trace.steps
    for number, step in enumerate(finished["data"]["steps"]):
        assert_received(step, trace.received[number])
        assert_anchors(step, detect(trace)[number])


@pytest.mark.slow
def test_two_models_are_run_one_after_the_other(server):
    events = run_job(server, REQUEST | {"models": ["twin-dream", "twin-arm"]})
    kinds = [(event["event"], event.get("run")) for event in events]
    assert [run["model"] for run in events[1]["runs"]] == ["twin-dream", "twin-arm"]
    assert kinds[2:10] == [("step", 0)] * 6 + [("finished", 0), ("trace", 0)]
    assert kinds[-3:] == [("finished", 1), ("trace", 1), ("done", None)]
    assert {kind for kind in kinds[10:-3]} == {("token", 1)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twin-llada", "twin-arm"])
def test_what_is_hidden_is_hidden_in_a_second_run_beside_the_first(server, models, name):
    model = next(model for model in models if model.name == name)
    prompt = fs.build_prompt(model.tokenizer, SAMPLE.question, SAMPLE.documents, SAMPLE.answers)
    gold = 1 + [document.gold for document in SAMPLE.documents].index(True)
    edit = fs.Edit("block", keys=f"doc {gold} or 3")
    edited = fs.generate(model, prompt, SAMPLERS[name], edits=[edit])
    events = run_job(server, REQUEST | {"models": [name], "hidden": [f"doc {gold}", "3"]})
    assert [run["model"] for run in events[1]["runs"]] == [name, f"{name}, edited"]
    plain, second = (event["data"] for event in events if event["event"] == "finished")
    assert plain["prediction"] == expected(models, name)[1]
    assert second["prediction"] == model.text(edited.answer) != plain["prediction"]
    assert second["model"] == f"{name}, edited"


def test_a_token_that_is_not_there_cannot_be_hidden(server):
    *_, error = run_job(server, REQUEST | {"hidden": ["99999"]})
    assert "no token 99999" in error["sentence"]


def test_without_documents_and_answers_there_is_no_verdict(server):
    bare = {name: REQUEST[name] for name in ("question", "models", "slots", "steps")}
    *_, finished, _, done = run_job(server, bare)
    assert done == {"event": "done"} and finished["data"]["correct"] is None and finished["data"]["gold"] == []


def test_words_that_a_model_does_not_know_are_counted(server):
    [_, opened, *_] = run_job(server, REQUEST | {"question": "Who zyxwv?", "documents": [], "slots": 1, "steps": 1})
    assert opened["runs"][0]["unknown"] > 0


@pytest.mark.slow
def test_two_jobs_at_once_wait_for_their_turn(server, held):
    (_, first), (_, second) = start_job(server, REQUEST), start_job(server, REQUEST | {"models": ["twin-arm"]})
    assert json.loads(first.readline()) == {"event": "queued", "before": 1}
    assert json.loads(second.readline()) == {"event": "queued", "before": 2}
    status, _, body = send(server, "POST", "/jobs", json.dumps(REQUEST).encode(), Content_Type="application/json")
    assert status == 503 and "queue is full: 2 jobs wait" in json.loads(body)["sentence"]
    held.set()
    assert json.loads(first.readlines()[-1]) == {"event": "done"}
    moved, *_, done = map(json.loads, second.readlines())
    assert moved == {"event": "queued", "before": 1} and done == {"event": "done"}


@pytest.mark.slow
def test_who_leaves_while_waiting_makes_room(server, held):
    (connection, answer), (_, other) = start_job(server, REQUEST), start_job(server, REQUEST)
    answer.close()
    connection.close()
    wait_until(lambda: server.queue.jobs == 2)
    assert [json.loads(other.readline())["before"] for _ in range(2)] == [2, 1]
    held.set()
    assert json.loads(other.readlines()[-1]) == {"event": "done"}


@pytest.mark.slow
def test_who_leaves_stops_the_run(server, models):
    forwards = []
    handle = models[0].backbone.register_forward_hook(lambda *_: forwards.append(time.monotonic()))
    try:
        connection, answer = start_job(server, REQUEST | {"slots": 128, "steps": 128})
        while json.loads(answer.readline())["event"] != "step":
            pass
        answer.close()
        connection.close()
        wait_until(lambda: server.queue.jobs == 0)
    finally:
        handle.remove()
    assert 1 <= len(forwards) < 128
    assert run_job(server, REQUEST)[-1] == {"event": "done"}


@pytest.mark.slow
def test_what_does_not_fit_is_a_sentence_and_the_server_lives(server):
    long = REQUEST | {"documents": [{"text": "Ada " * 1900}, {"text": "Ada " * 1900}]}
    *_, error = run_job(server, long)
    assert error["event"] == "error" and "context of 2048" in error["sentence"]
    assert run_job(server, REQUEST)[-1] == {"event": "done"}


def test_the_page_and_its_files_are_served_with_their_policy(server):
    for path in FILES:
        status, headers, body = send(server, "GET", path)
        assert status == 200 and body, path
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not any(name.lower().startswith("access-control") for name in headers)
    page = send(server, "GET", "/")[2].decode()
    named = set(re.findall(r'(?:src|href)="([^"#:]+)"', page))
    assert {f"/{name}" for name in named} | {"/"} == set(FILES), "the page names what is served, and nothing else"
    assert "<script>" not in page and "style=" not in page and "onclick" not in page
    setup = json.loads(send(server, "GET", "/setup.json")[2])
    assert [model["name"] for model in setup["models"]] == list(SAMPLERS)
    assert setup["limits"]["waiting"] == 2
    assert all(group["samples"] for group in setup["samples"])
    [mirrored] = [group for group in setup["samples"] if group["name"] == "What stood before these notes"]
    for sample in mirrored["samples"]:  # the twins have a token per word and sign
        assert sample["question"].startswith("{answer}")
        assert sample["slots"] == len(
            server.models["twin-llada"].tokenizer(sample["answers"][0], add_special_tokens=False).input_ids
        )


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/live.html",
        "/assets/live.js",
        "//etc/passwd",
        "/jobs",
        "/setup.json/..",
        "x",
    ],
)
def test_there_is_no_way_to_the_file_system(server, path):
    status, _, body = send(server, "GET", path)
    assert status == 404 and json.loads(body)["sentence"]


@pytest.mark.parametrize(
    ("status", "body", "headers", "told"),
    [
        (400, b"{", {}, "not valid JSON"),
        (400, b'{"question": "x", "models": ["/etc/passwd"]}', {}, "no such model"),
        (413, b" " * 300_000, {}, "300,000 bytes: at most 262,144"),
        (413, b" " * 6_000_000, {}, "6,000,000 bytes: at most 262,144"),  # all of it is read, or this would be lost
        (413, None, {"Content_Length": "99999999999999"}, "at most 262,144"),
        (411, b"", {"Content_Length": "-1"}, "Content-Length"),
        (411, None, {"Content_Length": "9" * 5000}, "Content-Length"),
        (415, b"{}", {"Content_Type": "text/plain"}, "application/json"),
        (421, b"{}", {"Host": "evil.example:8765"}, "own name"),
        (421, b"{}", {"Host": "127.0.0.1.evil.example"}, "own name"),
        (421, b"{}", {"Host": "[::1"}, "own name"),
        (403, b"{}", {"Origin": "http://evil.example"}, "other sites"),
        (403, b"{}", {"Origin": "null"}, "other sites"),
    ],
)  # fmt: skip
def test_jobs_that_are_refused(server, status, body, headers, told):
    if body is None:  # a length that is never sent
        with socket.create_connection(server.server_address, timeout=20) as raw:
            raw.sendall(b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            raw.sendall(f"Content-Length: {headers['Content_Length']}\r\n\r\n".encode())
            raw.shutdown(socket.SHUT_WR)
            found, answer = raw.makefile("rb").read().split(b"\r\n\r\n", 1)
            assert found.split()[1] == str(status).encode()
    else:
        found, _, answer = send(server, "POST", "/jobs", body, **{"Content_Type": "application/json"} | headers)
        assert found == status
    assert told in json.loads(answer)["sentence"]
    assert server.queue.jobs == 0


def test_pages_are_refused_under_a_foreign_name_and_served_under_its_own(server):
    for host in ("evil.example", ""):
        assert send(server, "GET", "/", Host=host)[0] == 421
    for host in ("localhost:9000", "127.0.0.1", "[::1]:8765", "10.0.0.7:8765", socket.gethostname()):
        assert send(server, "GET", "/", Host=host)[0] == 200, host


def test_its_own_name_may_be_written_in_any_case_and_end_in_a_dot(server, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "MyBox")
    assert all(map(server.knows_host, ("mybox", "MYBOX:80", "localhost.", "mybox.:8765", "LOCALHOST")))
    assert not any(map(server.knows_host, ("my-box", "mybox.evil.example", "localhost.evil.example", ":80")))


def test_twins_begin_with_few_slots_and_other_models_with_more(models):
    for name, usual in (("twin-llada", 8), ("llada-8b", 32)):
        model = copy.copy(models[0])
        model.name = name
        with LiveServer("127.0.0.1", 0) as server:
            server.open_with([model])
            assert (server.setup["slots"], server.setup["steps"]) == (usual, usual)
            assert server.setup["models"] == [{"name": name, "kind": "mdm", "visibility": "bidirectional"}]
            assert server.setup["limits"] == dataclasses.asdict(Limits())


def test_jobs_go_to_one_door(server):
    body = json.dumps(REQUEST).encode()
    status, _, answer = send(server, "POST", "/", body, Content_Type="application/json")
    assert status == 404 and json.loads(answer)["sentence"] == "There is nothing here: jobs go to /jobs."


def test_who_sends_half_a_request_is_not_waited_for(server, monkeypatch):
    assert 0 < Handler.timeout <= 60
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(server.server_address, timeout=20) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert slow.recv(1) == b""  # closed, without an answer


def test_a_port_in_use_is_one_sentence(server, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["floatscope", "serve", "--port", str(server.server_address[1])])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and "is in use" in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("host", "port", "told"),
    [
        ("127.0.0.1", 70000, "0 to 65535"),
        ("no.such.host.invalid", 0, "Cannot serve on no"),
        ("", 0, "--host is empty: give 127.0.0.1 for this machine only, or 0.0.0.0 for every interface"),
    ],
)
def test_addresses_that_cannot_be_bound(host, port, told):
    with pytest.raises(fs.UserError, match=told):
        LiveServer(host, port)


def test_a_server_that_everyone_reaches_says_so():
    for host, everywhere, named in (("0.0.0.0", True, "localhost"), ("0", True, "localhost"),
                                    ("127.0.0.1", False, "127.0.0.1"), ("localhost", False, "localhost")):  # fmt: skip
        with LiveServer(host, 0) as server:
            assert server.everywhere is everywhere
            assert server.url == f"http://{named}:{server.server_address[1]}/"


def test_connections_are_bounded_and_those_that_end_make_room(models):
    with serving(models[:1], Limits(connections=2)) as server:
        idle = [socket.create_connection(server.server_address, timeout=20) for _ in range(2)]
        try:
            with socket.create_connection(server.server_address, timeout=20) as third:
                head, body = third.makefile("rb").read().split(b"\r\n\r\n", 1)
            assert head.split()[1] == b"503" and "Too many connections" in json.loads(body)["sentence"]
        finally:
            for connection in idle:
                connection.close()

        def served() -> bool:
            try:
                return send(server, "GET", "/")[0] == 200
            except OSError:
                return False

        wait_until(served)


def test_models_the_page_could_not_use_are_refused(models):
    with LiveServer("127.0.0.1", 0) as server, pytest.raises(fs.UserError, match="Two models are called twin-llada"):
        server.open_with([models[0], models[0]])
    bare = fs.Model(models[0].backbone, models[0].family, None, "bare", mask_id=models[0].mask_id)
    with LiveServer("127.0.0.1", 0) as server, pytest.raises(fs.UserError, match="no tokenizer"):
        server.open_with([bare])


@pytest.mark.usefixtures("heard_interrupts")
def test_ctrl_c_ends_it_cleanly(monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = []

    def use_and_interrupt():
        def answered():
            try:
                page.append(urlopen(f"http://127.0.0.1:{port}/", timeout=1).read())
            except OSError:
                return False
            return True

        try:
            wait_until(answered)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sys, "argv", ["floatscope", "serve", "twin-arm", "--port", str(port)])
    client = threading.Thread(target=use_and_interrupt)
    client.start()
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    client.join()
    told = capsys.readouterr()
    assert f"serving twin-arm at http://127.0.0.1:{port}/" in told.out and b"floatscope" in page[0]
    assert stopped.value.code == 130 and "Traceback" not in told.err
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))  # it was given back
