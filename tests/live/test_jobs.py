"""The queue of jobs: one at a time, in order, bounded; who leaves makes room, and errors stay with their job."""

import threading
import time

import pytest

from floatscope.errors import UserError
from floatscope.live.jobs import Cancelled, JobQueue
from floatscope.live.requests import Refused


@pytest.fixture
def queue():
    made = JobQueue(waiting=2)
    yield made
    made.stop()


def events(job):
    """All events of a job, up to its end."""
    found = []
    while (event := job.events.get(timeout=5)) is not None:
        found.append(event)
    return found


def wait_until(true):
    stop = time.monotonic() + 60
    while not true():
        assert time.monotonic() < stop, "it did not happen in time"
        time.sleep(0.01)


def holding(queue):
    """A job that runs until its gate is opened."""
    gate, running = threading.Event(), threading.Event()

    def work(emit):
        running.set()
        gate.wait(5)

    job = queue.submit(work)
    assert running.wait(5)
    return job, gate


def test_jobs_run_one_at_a_time_and_are_told_their_place(queue):
    running = []

    def work(emit):
        running.append(1)
        assert len(running) == 1
        emit({"event": "worked"})
        time.sleep(0.02)
        running.pop()

    _, gate = holding(queue)
    first, second = queue.submit(work), queue.submit(work)
    assert first.events.get(timeout=5) == {"event": "queued", "before": 1}
    assert second.events.get(timeout=5) == {"event": "queued", "before": 2}
    gate.set()
    assert events(first) == [{"event": "worked"}]
    assert events(second) == [{"event": "queued", "before": 1}, {"event": "worked"}]
    wait_until(lambda: queue.jobs == 0)


def test_a_full_queue_refuses(queue):
    _, gate = holding(queue)
    for _ in range(2):
        queue.submit(lambda emit: None)
    with pytest.raises(Refused, match="queue is full: 2 jobs wait") as refused:
        queue.submit(lambda emit: None)
    assert refused.value.status == 503
    gate.set()
    wait_until(lambda: queue.jobs == 0)
    assert events(queue.submit(lambda emit: emit({"event": "worked"})))[-1] == {"event": "worked"}


def test_who_leaves_the_queue_lets_the_others_move_up(queue):
    _, gate = holding(queue)
    leaver, other = queue.submit(lambda emit: pytest.fail("a job of nobody ran")), queue.submit(lambda emit: None)
    queue.leave(leaver)
    assert queue.jobs == 2
    gate.set()
    assert [event["before"] for event in events(other)] == [2, 1]


def test_leaving_stops_a_running_job_at_its_next_event(queue):
    stopped = threading.Event()

    def work(emit):
        try:
            while True:
                emit({"event": "step"})
                time.sleep(0.001)
        except Cancelled:
            stopped.set()
            raise

    job = queue.submit(work)
    while job.events.get(timeout=5) != {"event": "step"}:
        pass
    queue.leave(job)
    assert stopped.wait(5)
    wait_until(lambda: queue.jobs == 0)


def test_an_error_is_a_sentence_and_the_next_job_runs(queue, capsys):
    def mistaken(emit):
        raise UserError("the canvas is too long")

    def broken(emit):
        raise ZeroDivisionError("inner detail")

    assert events(queue.submit(mistaken))[-1] == {"event": "error", "sentence": "the canvas is too long"}
    [told] = [event for event in events(queue.submit(broken)) if event["event"] == "error"]
    assert "ZeroDivisionError" in told["sentence"] and "inner detail" not in told["sentence"]
    assert "inner detail" in capsys.readouterr().err
    assert events(queue.submit(lambda emit: emit({"event": "worked"})))[-1] == {"event": "worked"}


def test_stop_ends_the_worker(queue):
    job, gate = holding(queue)
    queue.submit(lambda emit: pytest.fail("a job ran after the end"))
    gate.set()
    queue.stop()
    assert not queue._worker.is_alive() and events(job)[-1]["event"] == "queued"
