"""The one place where the engine's thread and the event loop meet."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

from samovar.engine.engine import Engine
from samovar.engine.request import Delta, Request
from samovar.errors import Unavailable

# The engine needs the GIL for a short while after each step; the default of 5 ms is two steps long.
SWITCH_INTERVAL_S = 0.0005

logger = logging.getLogger("samovar")


class AsyncEngine:
    """Runs an engine in a thread of its own and hands its deltas to coroutines of one event loop.

    Each stream has an unbounded queue, so a slow reader stalls nobody.  A fault in the engine ends
    every open stream with `Unavailable`, is kept in `failure`, and refuses later ones.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self._inbox: queue.SimpleQueue[Request | str | None] = queue.SimpleQueue()
        self._finished: list[tuple[str, Delta]] = []  # of the last step; engine thread only
        # Event loop only:
        self._streams: dict[str, asyncio.Queue[Delta | None]] = {}
        self._owed: dict[str, int] = {}  # replies of each request that have not ended
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Starts the thread; called on the event loop that will read the streams."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="samovar-engine", daemon=True)
        self._thread.start()

    def stream(self, request: Request, *, param: str = "prompt") -> AsyncGenerator[Delta, None]:
        """The deltas of a request; the last one of each choice has its finish reason.

        The request is refused here, and joins the queue when the first delta is asked for; closing
        the generator aborts it.  `param` names the field that the prompt came from.
        """
        self._refuse([request], param)
        return self._stream(request)

    @contextmanager
    def streams(
        self, requests: Sequence[Request], *, param: str = "prompt"
    ) -> Iterator[list[AsyncGenerator[Delta, None]]]:
        """The streams of requests that are taken or refused together.

        Their places in the queue are theirs from here on, each until its reply has ended in the
        engine: how fast anyone reads is no matter.
        """
        self._refuse(requests, param)
        self._owed.update((request.id, request.n) for request in requests)
        try:
            yield [self._stream(request) for request in requests]
        finally:
            for request in requests:
                self._owed.pop(request.id, None)

    @property
    def num_streams(self) -> int:
        """Streams that are open, read to their ends or not."""
        return len(self._streams)

    async def drain(self, timeout_s: float) -> bool:
        """Waits until no stream is open; False when the time ran out first."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._streams:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def close(self) -> None:
        """Ends the thread after its current step, and with it every stream that is still open."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._inbox.put(None)
            await asyncio.to_thread(thread.join)
            self._fail(Unavailable("The engine was closed.", code="shutting_down"))

    async def _stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._refuse_if_failed()  # it may have failed since the stream was asked for
        self._streams[request.id] = deltas
        self._owed.setdefault(request.id, request.n)
        num_unfinished = request.n
        try:
            self._inbox.put(request)
            while num_unfinished:
                delta = await deltas.get()
                if delta is None:
                    self._refuse_if_failed()
                    return
                if delta.error:
                    num_unfinished = 0
                elif delta.finish_reason:
                    num_unfinished -= 1
                yield delta
        finally:
            del self._streams[request.id]
            self._owed.pop(request.id, None)
            if num_unfinished:
                self._inbox.put(request.id)

    def _refuse(self, requests: Sequence[Request], param: str) -> None:
        self._refuse_if_failed()
        for request in requests:  # what is wrong is told at once, however full the queue is
            self.engine.check(request, param=param)
        num_replies = sum(request.n for request in requests)
        many = param if len(requests) > 1 else "n"
        self.engine.check_queue(num_replies, sum(self._owed.values()), param=many)

    def _refuse_if_failed(self) -> None:
        if isinstance(self.failure, Unavailable):
            raise self.failure
        if self.failure is not None:
            raise Unavailable(
                "The engine has stopped after a fault; see the server's log.", code="engine_error"
            )

    def _deliver(self, deltas: list[tuple[str, Delta]]) -> None:
        for request_id, delta in deltas:
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.put_nowait(delta)
                if delta.error:
                    self._owed.pop(request_id, None)
                elif delta.finish_reason and request_id in self._owed:
                    self._owed[request_id] -= 1

    def _fail(self, failure: BaseException) -> None:
        self.failure = self.failure or failure
        for stream in self._streams.values():
            stream.put_nowait(None)

    def _run(self) -> None:
        assert self._loop is not None
        try:
            while self._take_messages():
                # The event loop needs the GIL for what a step made: it is woken when the next step
                # is about to let it go, not to wait for it.
                deltas = self.engine.step(before_wait=self._post_finished)
                self._post_finished()  # unless that was done: there was nothing to wait for
                self._finished = deltas or []
            self.engine.close()
        except BaseException as failure:  # the thread must never end in silence
            try:
                self._post_finished()
            finally:
                self._post(self._fail, failure)  # first: without memory the log may fail as well
            logger.critical("the engine has stopped after a fault", exc_info=failure)

    def _take_messages(self) -> bool:
        """Applies what has arrived, waiting while the engine is idle; False once it shall end."""
        while self.engine.is_idle or not self._inbox.empty():
            self._post_finished()
            message = self._inbox.get()
            if message is None:
                return False
            if isinstance(message, Request):
                self.engine.submit(message)
            else:
                self.engine.abort(message)
        return True

    def _post_finished(self) -> None:
        if self._finished:
            finished, self._finished = self._finished, []
            self._post(self._deliver, finished)

    def _post(self, callback: object, argument: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(callback, argument)  # type: ignore[arg-type]
