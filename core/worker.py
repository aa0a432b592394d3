"""One thread that does all of an engine's work, one request after another.

MLX wants it so: lazy arrays do not cross threads, compiled functions are kept for each thread, every thread that
touches MLX costs a native one for good, and none of them may end before the process does. So threads are given back
and used again by later engines. Callers in any thread hand work in and wait; exceptions come back to them.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import ClassVar, Generic, TypeVar

from sparkwright.core.errors import RequestError

T = TypeVar("T")
R = TypeVar("R")


M_ARENA_MAX = -8


@cache
def _share_one_arena() -> None:
    """Let every thread allocate from glibc's main arena.

    A thread of its own gets an arena of its own, which gives memory back to the system after each token and faults it
    in again for the next: 3 to 4 % of a small model's decode on a CPU, measured. Other C libraries have no such option.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


class _Thread:
    """A daemon thread that never ends: MLX 0.32 aborts the process at exit if a thread that touched it has ended."""

    _idle: ClassVar[list[_Thread]] = []
    _lock = threading.Lock()
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        _share_one_arena()
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="sparkwright engine", daemon=True)
        self.thread.start()

    @classmethod
    def any_at_work(cls) -> bool:
        """Whether a thread of this process has a job: one that MLX computes in must not see the interpreter end."""
        return cls.made > len(cls._idle)

    @classmethod
    def take(cls) -> _Thread:
        """One that an earlier engine gave back, or a new one."""
        with cls._lock:
            if cls._idle:
                return cls._idle.pop()
            cls.made += 1
            return cls()

    def give_back(self) -> None:
        with self._lock:
            self._idle.append(self)

    def _run(self) -> None:
        while True:
            job = self.jobs.get()
            job()
            del job  # what it holds (states, arrays) must not outlive it until the next one comes


def at_work() -> bool:
    """Whether an engine of this process is still computing, or open."""
    return _Thread.any_at_work()


_STRETCH = 0.5  # seconds


def result_of(future: Future[R]) -> R:
    """The future's result, waited for in short stretches.

    The system may hand a signal to any thread, and nothing then wakes a main thread that waits without a limit: Ctrl-C
    would be noticed only when the job is done.
    """
    while True:
        try:
            return future.result(timeout=_STRETCH)
        except TimeoutError:
            if future.done():  # the job's own
                return future.result()


class Worker:
    """A thread with a queue, of an engine's own while it lives. `close` lets what is queued end and takes no more."""

    def __init__(self) -> None:
        self._thread = _Thread.take()
        self._closed = False
        self._ended = threading.Event()
        self._lock = threading.Lock()  # nothing may be queued behind the end: its caller would wait for ever

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Queue `work`; its result or exception is the future's."""
        future: Future[R] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            if self._closed:
                raise RequestError("this engine is closed; assemble a new one")
            self._thread.jobs.put(job)
        return future

    def close(self, wait: bool = True) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._thread.jobs.put(self._end)
        if wait and threading.current_thread() is not self._thread.thread:
            self._ended.wait()

    def _end(self) -> None:
        self._thread.give_back()
        self._ended.set()


class _End:
    """Behind the last thing that a job emits."""


class Stream(Generic[T, R]):
    """What a running job emits, as an iterator, and its result once it has ended.

    `cancel` asks the job to end early; leaving a `with` block or dropping the stream does the same.
    """

    def __init__(self, worker: Worker, work: Callable[[Callable[[T], None], Callable[[], bool]], R]) -> None:
        self._emitted: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
        self._cancelled = cancelled = threading.Event()
        emitted = self._emitted  # the job must not hold the stream, or a stream that is dropped would never go

        def job() -> R:
            return work(emitted.put, cancelled.is_set)

        self._future = worker.submit(job)
        self._future.add_done_callback(lambda _: emitted.put(_End()))

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._next(), _End):
            yield item
        self._emitted.put(item)  # a second loop ends at once
        self._future.result()

    def _next(self) -> T | _End:
        """Waits in short stretches, as `result_of` does."""
        while True:
            with suppress(queue.Empty):
                return self._emitted.get(timeout=_STRETCH)

    @property
    def result(self) -> R:
        """The job's result; waits for it. Raises what the job raised."""
        return result_of(self._future)

    def cancel(self) -> None:
        """Ask the job to end; one that has not begun begins, sees it, and ends with a result like any other."""
        self._cancelled.set()

    def __del__(self) -> None:
        self._cancelled.set()

    def __enter__(self) -> Stream[T, R]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cancel()
