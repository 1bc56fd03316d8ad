"""One job at a time: a bounded queue, one worker, and for each job a stream of events that its client reads.

It knows neither HTTP nor models: what a job does is a function that gets `emit`.
"""

from __future__ import annotations

import sys
import threading
import traceback
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
        self.events: SimpleQueue[Event | None] = SimpleQueue()
        self.cancelled = threading.Event()

    def tell(self, event: Event | None) -> None:
        """Hand an event to the client."""
        self.events.put(event)

    def emit(self, event: Event) -> None:
        """The same from inside the job; stops the job of a client that has left."""
        if self.cancelled.is_set():
            raise Cancelled
        self.tell(event)

    def run(self) -> None:
        """Do the work; whatever goes wrong becomes an event with a sentence, and never ends the worker."""
        try:
            self._work(self.emit)
        except Cancelled:
            pass
        except UserError as error:
            self.tell({"event": "error", "sentence": str(error)})
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # for whoever runs the server; the page gets a sentence
            told = f"The run failed with {type(error).__name__}; the terminal of floatscope serve says more."
            self.tell({"event": "error", "sentence": told})
        finally:
            self.tell(None)


class JobQueue:
    """Jobs in order of arrival, run one at a time by one thread; the first is the one that runs."""

    def __init__(self, waiting: int) -> None:
        """`waiting`: the most jobs that may wait behind the one that runs."""
        self._most = waiting
        self._jobs: list[LiveJob] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._worker = threading.Thread(target=self._work, name="floatscope live worker", daemon=True)
        self._worker.start()

    @property
    def jobs(self) -> int:
        """Jobs that run or wait."""
        return len(self._jobs)

    def submit(self, work: Callable[[Emit], None]) -> LiveJob:
        """Put work at the end of the queue and tell its client how many jobs are before it."""
        job = LiveJob(work)
        with self._changed:
            if len(self._jobs) > self._most:
                raise Refused(503, f"The queue is full: {self._most} jobs wait already. Try again in a while.")
            self._jobs.append(job)
            self._tell_from(len(self._jobs) - 1)
            self._changed.notify_all()
        return job

    def leave(self, job: LiveJob) -> None:
        """The client has left: its job leaves the queue, or stops at its next event if it runs."""
        with self._changed:
            job.cancelled.set()
            if job in self._jobs[1:]:
                place = self._jobs.index(job)
                del self._jobs[place]
                self._tell_from(place)

    def stop(self) -> None:
        """Cancel everything and let the worker end."""
        with self._changed:
            self._stopped = True
            for job in self._jobs:
                job.cancelled.set()
            self._changed.notify_all()
        self._worker.join(timeout=5)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopped)
                if self._stopped:
                    return
            self._jobs[0].run()
            with self._changed:
                del self._jobs[0]
                self._tell_from(1)

    def _tell_from(self, first: int) -> None:
        """Tell the jobs from this place on how many are before them."""
        for place, job in enumerate(self._jobs[first:], first):
            job.tell({"event": "queued", "before": place})
