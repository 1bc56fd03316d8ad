"""One job at a time: a bounded queue, one worker, and for each job a stream of events that its client reads.

It knows neither HTTP nor models: what a job does is a function that gets `emit`.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from floatscope.errors import UserError
from floatscope.live.requests import Refused

Event = Mapping[str, Any]
Emit = Callable[[Event], None]


class Cancelled(Exception):
    """The client of a job has left: raised by `emit` inside the job."""


class LiveJob:
    """Work that waits its turn; its events end with None."""

    def __init__(self, work: Callable[[Emit], None]) -> None:
        self._work = work
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self.cancelled = threading.Event()

    def emit(self, event: Event) -> None:
        """Hand an event to the client; stops the job of one that has left."""
        if self.cancelled.is_set():
            raise Cancelled
        self._events.put(event)

    def next_event(self, timeout: float) -> Event | None:
        """The next event, None at the end; raises queue.Empty if there is none yet."""
        return self._events.get(timeout=timeout)

    def run(self) -> None:
        """Do the work; whatever goes wrong becomes an event with a sentence, and never ends the worker."""
        try:
            self._work(self.emit)
        except Cancelled:
            pass
        except UserError as error:
            self._events.put({"event": "error", "sentence": str(error)})
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # for whoever runs the server; the page gets a sentence
            told = f"The run failed with {type(error).__name__}; the terminal of floatscope serve says more."
            self._events.put({"event": "error", "sentence": told})
        finally:
            self._events.put(None)


class JobQueue:
    """Jobs in order of arrival, run one at a time by one thread."""

    def __init__(self, waiting: int) -> None:
        """`waiting`: the most jobs that may wait behind the one that runs."""
        self._most = waiting
        self._waiting: deque[LiveJob] = deque()
        self._running: LiveJob | None = None
        self._changed = threading.Condition()
        self._stopped = False
        self._worker = threading.Thread(target=self._work, name="floatscope live worker", daemon=True)
        self._worker.start()

    @property
    def jobs(self) -> int:
        """Jobs that run or wait."""
        with self._changed:
            return len(self._waiting) + (self._running is not None)

    def submit(self, work: Callable[[Emit], None]) -> LiveJob:
        """Put work at the end of the queue and tell its client how many jobs are before it."""
        job = LiveJob(work)
        with self._changed:
            if len(self._waiting) >= self._most + (self._running is None):
                raise Refused(503, f"The queue is full: {len(self._waiting)} jobs wait already. Try again in a while.")
            self._waiting.append(job)
            self._tell(len(self._waiting) - 1)
            self._changed.notify_all()
        return job

    def leave(self, job: LiveJob) -> None:
        """The client has left: its job leaves the queue, or stops at its next event if it runs."""
        with self._changed:
            job.cancelled.set()
            if job in self._waiting:
                place = self._waiting.index(job)
                del self._waiting[place]
                self._tell(place)

    def stop(self) -> None:
        """Cancel everything and let the worker end."""
        with self._changed:
            self._stopped = True
            for job in (*self._waiting, *([self._running] if self._running else [])):
                job.cancelled.set()
            self._waiting.clear()
            self._changed.notify_all()
        self._worker.join(timeout=5)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = None
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if self._stopped:
                    return
                self._running = self._waiting.popleft()
                self._tell(0)
            self._running.run()

    def _tell(self, first: int) -> None:
        """Tell the jobs from this place on how many are before them."""
        before = int(self._running is not None)
        for place, job in enumerate(self._waiting):
            if place >= first:
                job.emit({"event": "queued", "before": before + place})
