"""The engine's thread and the event loop: streams, aborts, faults, the end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine_cases import MODEL_PATHS, alone, load, requests
from samovar import AsyncEngine, Engine, Request
from samovar.errors import ContextOverflow, QueueFull, RequestError, Unavailable


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[AsyncEngine]:
    """A started engine that has given everything back at the end."""
    front = AsyncEngine(engine)
    front.start()
    try:
        yield front
    finally:
        await front.close()
    if front.failure is None or isinstance(front.failure, Unavailable):
        assert front.num_streams == 0
        assert engine.stats().blocks_used == 0
        engine.check_blocks()


async def collect(front: AsyncEngine, request: Request) -> tuple[list[int], str, str | None]:
    tokens: list[int] = []
    text, reason = "", None
    async for delta in front.stream(request):
        tokens += delta.tokens
        text += delta.text
        reason = delta.finish_reason
    return tokens, text, reason


async def until_idle(engine: Engine) -> None:
    while engine.stats().running or engine.stats().waiting:
        await asyncio.sleep(0)


def test_streams_at_once_are_what_they_are_alone() -> None:
    engine = load(MODEL_PATHS[0])
    wanted = requests(engine)
    expected = alone(engine, wanted)

    async def main() -> None:
        async with running(engine) as front:
            found = await asyncio.gather(*(collect(front, request) for request in wanted))
        assert found == [expected[request.id] for request in wanted]

    asyncio.run(main())


@pytest.mark.parametrize("deltas_read", [0, 1, 5])
def test_a_closed_stream_stops_its_work(deltas_read: int) -> None:
    engine = load(MODEL_PATHS[0])
    (long,) = requests(engine, max_tokens=0)[:1]

    async def main() -> None:
        async with running(engine) as front:
            stream = front.stream(long)
            for _ in range(deltas_read):
                await anext(stream)
            await stream.aclose()
            await until_idle(engine)

    asyncio.run(main())


def test_a_cancelled_reader_stops_its_work() -> None:
    engine = load(MODEL_PATHS[0])
    (long,) = requests(engine, max_tokens=0)[:1]

    async def main() -> None:
        async with running(engine) as front:
            reader = asyncio.create_task(collect(front, long))
            while not engine.stats().tokens_computed:
                await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await until_idle(engine)

    asyncio.run(main())


def test_a_refused_request_leaves_nothing_behind() -> None:
    engine = load(MODEL_PATHS[0], ctx=64)
    request = requests(engine)[3]

    async def main() -> None:
        async with running(engine) as front:
            with pytest.raises(ContextOverflow) as info:
                front.stream(request, param="messages")
            assert info.value.param == "messages"

    asyncio.run(main())


def test_a_delta_comes_while_the_next_step_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(MODEL_PATHS[0])
    (request,) = requests(engine, max_tokens=0)[:1]
    runner, go_on, num_runs = engine._runner, threading.Event(), 0

    def run(**arrays: Any) -> list[int]:
        nonlocal num_runs
        num_runs += 1
        assert num_runs == 1 or go_on.wait(60)
        return runner.run(**arrays)

    monkeypatch.setattr(engine, "_runner", SimpleNamespace(run=run))

    async def main() -> None:
        async with running(engine) as front:
            stream = front.stream(request)
            try:
                first = await asyncio.wait_for(anext(stream), 30)
            finally:
                go_on.set()
            assert len(first.tokens) == 1
            await stream.aclose()
            await until_idle(engine)

    asyncio.run(main())


def test_what_a_step_made_comes_before_the_fault_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = load(MODEL_PATHS[0])
    (request,) = requests(engine, max_tokens=0)[:1]
    schedule, num_steps = engine._scheduler.schedule, 0

    def fault(*arguments: Any) -> Any:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            raise RuntimeError("a fault of ours")
        return schedule(*arguments)

    monkeypatch.setattr(engine._scheduler, "schedule", fault)

    async def main() -> None:
        async with running(engine) as front:
            stream = front.stream(request)
            assert len((await anext(stream)).tokens) == 1
            assert len((await anext(stream)).tokens) == 1
            with pytest.raises(Unavailable):
                await anext(stream)

    asyncio.run(main())


def test_a_fault_ends_open_streams_and_refuses_later_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(MODEL_PATHS[0])
    first, second = requests(engine, max_tokens=0)[:2]

    def fault(**_: Any) -> None:
        raise RuntimeError("a fault of ours")

    async def main() -> None:
        async with running(engine) as front:
            stream = front.stream(first)
            asked_for_before_the_fault = front.stream(second)
            await anext(stream)
            monkeypatch.setattr(engine, "step", fault)
            with pytest.raises(Unavailable) as info:
                async for _ in stream:
                    pass
            assert info.value.code == "engine_error"
            with pytest.raises(Unavailable):
                await anext(asked_for_before_the_fault)
            with pytest.raises(Unavailable):
                front.stream(second)
            assert isinstance(front.failure, RuntimeError)
        assert "a fault of ours" in caplog.text

    asyncio.run(main())


def test_closing_the_engine_ends_open_streams() -> None:
    engine = load(MODEL_PATHS[0])
    (long,) = requests(engine, max_tokens=0)[:1]

    async def main() -> None:
        async with running(engine) as front:
            stream = front.stream(long)
            await anext(stream)
            await front.close()
            with pytest.raises(Unavailable) as info:
                async for _ in stream:
                    pass
            assert info.value.code == "shutting_down"

    asyncio.run(main())


def test_500_requests_a_third_of_them_cancelled_leave_nothing_behind() -> None:
    engine = load(MODEL_PATHS[0], ctx=256, max_sequences=8)
    prompts = requests(engine)
    numbers = random.Random(0)

    async def one(front: AsyncEngine, index: int) -> None:
        request = replace(prompts[index % len(prompts)], id=str(index), max_tokens=12)
        cancelled_after = numbers.randrange(6) if index % 3 == 0 else None
        stream = front.stream(request)
        count = 0
        async for _ in stream:
            count += 1
            if count == cancelled_after:
                break
        await stream.aclose()

    async def main() -> None:
        async with running(engine) as front:
            for start in range(0, 500, 50):
                await asyncio.gather(*(one(front, start + i) for i in range(50)))
            await until_idle(engine)

    asyncio.run(main())


def test_draining_waits_for_replies_but_not_for_ever() -> None:
    engine = load(MODEL_PATHS[0])
    short, long = requests(engine, max_tokens=3)[0], requests(engine, max_tokens=0)[1]

    async def main() -> None:
        async with running(engine) as front:
            reader = asyncio.create_task(collect(front, short))
            await asyncio.sleep(0)
            assert await front.drain(30)
            await reader
            stream = front.stream(long)
            await anext(stream)
            assert not await front.drain(0)
            await stream.aclose()

    asyncio.run(main())


def test_more_requests_than_may_wait_are_refused() -> None:
    engine = load(MODEL_PATHS[0], max_sequences=1, max_queue=1)
    long = requests(engine, max_tokens=0)[:3]

    async def main() -> None:
        async with running(engine) as front:
            streams = [front.stream(request) for request in long[:2]]
            for stream in streams[:1]:
                await anext(stream)
            waiting = asyncio.create_task(anext(streams[1]))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                front.stream(long[2])
            await streams[0].aclose()
            await waiting
            await streams[1].aclose()

    asyncio.run(main())


def test_a_reply_that_nobody_reads_gives_its_place_back() -> None:
    engine = load(MODEL_PATHS[0], max_sequences=2, max_queue=0)
    first, second, third = requests(engine, max_tokens=3)[:3]

    async def main() -> None:
        async with running(engine) as front:
            with front.streams([replace(first, n=2)]) as (unread,):
                with pytest.raises(QueueFull):
                    front.stream(second)
                await anext(unread)
                await until_idle(engine)
                await asyncio.sleep(0)
                with front.streams([second, third]) as streams:
                    for stream in streams:
                        assert [delta async for delta in stream][-1].finish_reason
                reasons = [delta.finish_reason async for delta in unread]
                assert len(list(filter(None, reasons))) == 2

    asyncio.run(main())


@pytest.mark.parametrize(("num_requests", "n", "param"), [(1, 4, "n"), (4, 1, "prompt")])
def test_more_replies_than_there_are_places_are_wrong(
    num_requests: int, n: int, param: str
) -> None:
    engine = load(MODEL_PATHS[0], max_sequences=1, max_queue=2)
    several = [replace(each, n=n) for each in requests(engine)[:num_requests]]

    async def main() -> None:
        async with running(engine) as front:
            with pytest.raises(RequestError) as info, front.streams(several):
                pass
            assert info.value.param == param
            assert not isinstance(info.value, QueueFull)

    asyncio.run(main())
