"""The clients of soak.py: each has its manners, and none lets a wrong reply pass."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from soak_cases import CHAT, TEXT, Case, Catalogue, Folded, is_beginning
from soak_client import Answer, Broken, Connection

MOST_CASES = 4000
MOST_FAULTS = 40  # then it is over
REPLY_TIMEOUT_S = 900  # of time that counts
SETTLING_S = 30.0
PAUSE_S = 5.0  # a longer gap between two ticks means that we were stopped
MOST_RETRIES = 1000  # a burst may last long on a busy machine
REFUSED = [  # path, body, status, and the field that the error names
    (TEXT, b"{", 400, None),
    (TEXT, b"[]", 400, None),
    (TEXT, b"{}", 400, "prompt"),
    (TEXT, b'{"prompt": 7}', 400, "prompt"),
    (TEXT, b'{"prompt": "a", "n": 0}', 400, "n"),
    (TEXT, b'{"prompt": "a", "top_p": 2}', 400, "top_p"),
    (TEXT, b'{"prompt": [999999999]}', 400, "prompt"),
    (TEXT, b'{"prompt": "a", "suffix": "b"}', 400, "suffix"),
    (TEXT, json.dumps({"prompt": "word " * 2000}).encode(), 400, "prompt"),
    (TEXT, b'{"prompt": "a", "best_of": 2, "stream": true}', 400, "best_of"),
    (CHAT, b'{"messages": []}', 400, "messages"),
    (CHAT, b'{"messages": [{"role": "user"}]}', 400, "messages[0].content"),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, None),
    (
        CHAT,
        b'{"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3}',
        400,
        "top_logprobs",
    ),
    ("/v1/nothing", b"{}", 404, None),
    ("/v1/models", b"{}", 405, None),
]


class Clock:
    """Seconds since the start, those not counted in which everything was stopped."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses = 0
        self._paused_at = -SETTLING_S
        self._last = time.monotonic()

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            await asyncio.sleep(0.25)
            passed = time.monotonic() - self._last
            self._last += passed
            if passed > PAUSE_S:
                self.pauses += 1
                self._paused_at = self.seconds
            else:
                self.seconds += passed

    @property
    def is_settled(self) -> bool:
        """Whether the last pause is long enough ago that servers show nothing of it."""
        return self.seconds - self._paused_at >= SETTLING_S

    async def within(self, seconds: float, work: Awaitable[Any]) -> Any:
        """The result of `work`; TimeoutError after so many seconds that count."""
        task = asyncio.ensure_future(work)
        deadline = self.seconds + seconds
        try:
            while not task.done():
                if self.seconds > deadline:
                    raise TimeoutError
                await asyncio.wait([task], timeout=1.0)
            return task.result()
        finally:
            task.cancel()


class Clients:
    """All clients, and what they have seen.

    port, keys: of the server under test.  judge_port, judge_keys: of the one that computes what is
    expected; each key is used once.  burst: requests that come at once in a burst.
    """

    def __init__(
        self,
        port: int,
        keys: list[str],
        judge_port: int,
        judge_keys: list[str],
        *,
        burst: int,
        seed: int,
    ) -> None:
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.stopping = asyncio.Event()
        self.may_work = asyncio.Event()
        self._port = port
        self._keys = keys
        self._judge_port = judge_port
        self._judge_keys = iter(judge_keys)
        self._burst = burst
        self._judge_lock = asyncio.Lock()
        self._burst_lock = asyncio.Lock()
        self._random = random.Random(seed)
        self._catalogue = Catalogue(seed)

    def fault(self, text: str) -> None:
        """Notes what must not be."""
        self.faults.append(text)
        if len(self.faults) >= MOST_FAULTS:
            self.stopping.set()
        print(f"FAULT {text}"[:4000], flush=True)

    @property
    def num_cases(self) -> int:
        return len(self._catalogue.cases)

    async def run_one(self) -> None:
        """One client after another until the soak ends."""
        manners: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self.whole, 30),
            (self.streamed, 30),
            (self.cancelled, 20),
            (self.kept_alive, 5),
            (self.slow, 3),
            (self.deaf, 3),
            (self.half_sent, 2),
            (self.bad, 6),
            (self.burst, 0.7),
        ]
        actions, weights = zip(*manners, strict=True)
        while not self.stopping.is_set():
            await self.may_work.wait()
            (action,) = self._random.choices(actions, weights)
            pauses = self.clock.pauses
            try:
                await self.clock.within(REPLY_TIMEOUT_S, action())
            except (Broken, OSError, TimeoutError) as error:
                if self.clock.pauses == pauses:
                    self.fault(f"{action.__name__}: {type(error).__name__} {error}")
                else:
                    self.counts["disturbed by a pause"] += 1
            except Exception as error:
                self.fault(f"{action.__name__}: {error!r}")
            await asyncio.sleep(self._random.expovariate(2))

    async def case(self) -> Case:
        """A case with its expected reply; new ones are put to the judge, one at a time."""
        share = 0.7 if self.num_cases < 50 else 0.12
        is_fresh = self.num_cases < MOST_CASES and self._random.random() < share
        if is_fresh or not self.num_cases:
            case = self._catalogue.fresh()
        else:
            case = self._catalogue.known()
        async with self._judge_lock:
            if case.expected is None:
                connection = Connection(self._judge_port)
                await connection.send(
                    "POST", case.path, next(self._judge_keys), case.encoded(stream=False)
                )
                answer = await connection.answer()
                await connection.close()
                case.expected = self._result(answer)
        return case

    def _result(self, answer: Answer) -> dict[str, Any]:
        if answer.status != 200:
            return {"choices": {"0": {"text": ""}}, "error": answer.body["error"]}
        folded = Folded()
        folded.add(answer.body)
        return folded.result()

    async def ask(self, case: Case, connection: Connection, *, stream: bool) -> None:
        """One reply to its end, compared; a refusal because of the queue is tried again."""
        for _ in range(MOST_RETRIES):
            usage = self._random.random() < 0.5
            await connection.send(
                "POST", case.path, self._key(), case.encoded(stream=stream, usage=usage)
            )
            answer = await connection.head()
            if answer.status != 429:
                break
            await connection.whole(answer)
            await self._wait_as_told(answer)
        else:
            self.fault(f"case {case.number}: refused again and again")
            return
        if answer.status == 200 and not answer.headers.get("x-seed", "").isdecimal():
            self.fault(f"case {case.number}: no x-seed")
        if stream and answer.status == 200:
            folded = Folded()
            async for event in connection.events(answer):
                if "error" in event:
                    self.fault(f"case {case.number}: {event}")
                    return
                folded.add(event)
            found = folded.result()
        else:
            answer = await connection.whole(answer)
            found = self._result(answer)
            if answer.status == 200:
                self._count(answer.body["usage"])
        self._compare(case, found, "streamed" if stream else "whole")

    def _count(self, usage: dict[str, Any]) -> None:
        self.counts["cached tokens"] += usage["prompt_tokens_details"]["cached_tokens"]
        details = usage["completion_tokens_details"]
        self.counts["accepted drafts"] += details["accepted_prediction_tokens"]

    def _compare(self, case: Case, found: dict[str, Any], how: str) -> None:
        assert case.expected is not None
        expected = dict(case.expected)
        if found.get("usage", 0) is None:
            expected["usage"] = None
        self.counts["replies compared"] += 1
        if found != expected:
            self.counts["mismatches"] += 1
            self.fault(f"case {case.number} {how}: {case.body}\nexpected {expected}\nfound {found}")

    async def _wait_as_told(self, answer: Answer) -> None:
        self.counts["429"] += 1
        seconds = answer.headers.get("retry-after", "")
        if not seconds.isdecimal():
            self.fault(f"429 with retry-after {seconds!r}")
        await asyncio.sleep(int(seconds or 1) * self._random.uniform(1, 2))

    def _key(self) -> str:
        return self._random.choice(self._keys)

    async def whole(self) -> None:
        """Waits for the whole reply."""
        case = await self.case()
        connection = Connection(self._port)
        await self.ask(case, connection, stream=False)
        await connection.close()

    async def streamed(self) -> None:
        """Reads a stream."""
        case = await self.case()
        connection = Connection(self._port)
        await self.ask(case, connection, stream=case.streamable)
        await connection.close()

    async def kept_alive(self) -> None:
        """Several requests on one connection."""
        cases = [await self.case() for _ in range(self._random.randint(2, 5))]
        connection = Connection(self._port)
        for case in cases:
            await self.ask(case, connection, stream=case.streamable and self._random.random() < 0.5)
        await connection.close()

    async def slow(self) -> None:
        """Reads a few bytes a second for a while, then the rest at once."""
        case = await self.case()
        connection = Connection(self._port, bytes_per_s=self._random.choice([5, 20, 200]))

        async def hurry() -> None:
            await asyncio.sleep(self._random.uniform(20, 60))
            connection.bytes_per_s = 0

        hurrying = asyncio.create_task(hurry())
        try:
            await self.ask(case, connection, stream=case.streamable)
            self.counts["slow readers"] += 1
        finally:
            hurrying.cancel()
            await connection.close()

    async def cancelled(self) -> None:
        """Goes away at a random moment: in the queue, in the prompt, or in the reply."""
        case = await self.case()
        assert case.expected is not None
        stream = case.streamable and self._random.random() < 0.6
        connection = Connection(self._port)
        folded = Folded()

        async def read() -> None:
            answer = await connection.head()
            if answer.status >= 500:
                self.fault(f"status {answer.status}")
            if answer.status == 200 and stream:
                async for event in connection.events(answer):
                    folded.add(event)

        await connection.send("POST", case.path, self._key(), case.encoded(stream=stream))
        reading = asyncio.create_task(read())
        await asyncio.wait(
            [reading], timeout=self._random.choice([0, 0.02, 0.2, 1, 3]) * self._random.random()
        )
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        await self._leave(connection)
        self.counts["cancelled"] += 1
        if not is_beginning(folded.result(), case.expected):
            self.counts["mismatches"] += 1
            self.fault(f"case {case.number} cancelled: {case.body}\nfound {folded.result()}")

    async def _leave(self, connection: Connection) -> None:
        if self._random.random() < 0.5:
            connection.vanish()
        else:
            await connection.close()

    async def deaf(self) -> None:
        """Asks for much, does not read it, and vanishes after a while."""
        case = await self.case()
        body = {**json.loads(case.encoded(stream=True)), "max_tokens": 200, "stop": None}
        body.pop("best_of", None)
        connection = Connection(self._port)
        connection.small_buffer = True
        await connection.send("POST", case.path, self._key(), json.dumps(body).encode())
        await asyncio.sleep(self._random.uniform(1, 40))
        await self._leave(connection)
        self.counts["deaf readers"] += 1

    async def half_sent(self) -> None:
        """Sends a part of a request and goes away."""
        body = (await self.case()).encoded(stream=True)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        connection = Connection(self._port)
        await connection.send_raw(data[: self._random.randrange(1, len(data))])
        await asyncio.sleep(self._random.uniform(0, 3))
        await self._leave(connection)
        self.counts["half sent"] += 1

    async def bad(self) -> None:
        """Sends what must be refused, and looks at the refusal."""
        path, body, status, param = self._random.choice(REFUSED)
        key = self._key()
        if self._random.random() < 0.1:
            key, status, param = "no-key", 401, None
        connection = Connection(self._port)
        await connection.send("POST", path, key, body)
        answer = await connection.answer()
        await connection.close()
        self.counts["bad requests"] += 1
        error = answer.body["error"]
        if answer.status != status or (param is not None and error["param"] != param):
            self.fault(f"{body[:80]!r}: {answer.status} {answer.body}, expected {status} {param}")

    async def burst(self) -> None:
        """More requests at once than there are places; one burst at a time."""
        async with self._burst_lock:
            await self._burst_of_requests()

    async def _burst_of_requests(self) -> None:
        cases = [await self.case() for _ in range(self._burst)]
        connections = [Connection(self._port) for _ in cases]
        await asyncio.gather(
            *(
                self.ask(case, connection, stream=case.streamable and i % 2 == 0)
                for i, (case, connection) in enumerate(zip(cases, connections, strict=True))
            )
        )
        for connection in connections:
            await connection.close()
        self.counts["bursts"] += 1
