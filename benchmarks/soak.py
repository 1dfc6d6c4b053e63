"""Hours of mixed clients against a server that is short of everything, every reply checked.

Starts two servers on free ports of the loopback.  The one under test has few KV blocks (its address
space is limited), few places, a small cache on disk and several API keys.  The other is the judge:
one request at a time, one thread, no speculation, a key of its own for each request, so that
nothing is found in a cache.  Clients stream or not, cancel, read slowly, stop reading, vanish, send
nonsense and come in bursts; each reply, its log probabilities included, must be the judge's, a
broken-off one its beginning.  At the end nothing runs, no block is held, and the memory is what it
was after warming up.

Time in which all processes are stopped (SIGSTOP to the process group) does not count.  SIGINT and
SIGTERM end the run early, with all checks.

    python benchmarks/soak.py smollm2 --minutes 120 --load 0.5
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from soak_client import Broken, Connection
from soak_clients import MOST_CASES, Clients
from soak_server import Server, health_of, start_short_of_memory

MAX_SEQUENCES = 8
MAX_QUEUE = 8
COMMON = ["--ctx", "1024", "--kv", "f32", "--max-sequences", str(MAX_SEQUENCES)]
TESTED = ["--max-queue", str(MAX_QUEUE), "--batch", "96", "--speculate", "ngram"]
JUDGE = ["--threads", "1", "--batch", "512", "--speculate", "off"]
KEYS = ["first-key", "second-key", "third-key"]
HEALTH_TIMEOUT_S = 60
WARM_UP_MINUTES = 10
GROWTH_BYTES = 16 * 2**20  # of the resident memory after warming up, beside 3 %


class Soak:
    """Runs the clients and looks at the server meanwhile."""

    def __init__(self, tested: Server, judge: Server, clients: Clients) -> None:
        self._tested = tested
        self._judge = judge
        self._clients = clients
        self._clock = clients.clock
        self._health_s: list[float] = []
        self._rss: list[int] = []

    async def run(self, minutes: float, num_clients: int, load: float) -> None:
        """All of it; what was found is in the clients' `faults`."""
        stopping = self._clients.stopping
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        ticking = asyncio.create_task(self._clock.run())
        num_open_files = self._tested.num_open_files()
        work = [self._clients.run_one() for _ in range(num_clients)]
        watching = [self._watch_health(), self._report(), self._keep_load(load)]
        tasks = [asyncio.create_task(each) for each in (*work, *watching)]
        while self._clock.seconds < 60 * minutes and not stopping.is_set():
            await asyncio.sleep(0.5)
            if self._tested.has_ended:
                self._clients.fault("the server has ended")
                stopping.set()
        stopping.set()
        self._clients.may_work.set()
        await asyncio.gather(*tasks)
        if not self._tested.has_ended:
            await self._check_rest(num_open_files)
        ticking.cancel()

    async def _health(self) -> dict[str, Any]:
        """What /health says; it must always be 200."""
        connection = Connection(self._tested.port)
        pauses = self._clock.pauses
        started = time.monotonic()
        try:
            await connection.send("GET", "/health", "no-key")
            answer = await self._clock.within(HEALTH_TIMEOUT_S, connection.answer())
        except (Broken, OSError, TimeoutError) as error:
            if self._clock.pauses == pauses:
                self._clients.fault(f"/health: {error!r}")
            return {}
        finally:
            await connection.close()
        if self._clock.pauses == pauses:
            self._health_s.append(time.monotonic() - started)
            if answer.status != 200 and self._clock.is_settled:
                self._clients.fault(f"/health: {answer.status} {answer.body}")
        return dict(answer.body)

    async def _watch_health(self) -> None:
        while not self._clients.stopping.is_set():
            await self._health()
            await asyncio.sleep(2)

    async def _keep_load(self, load: float) -> None:
        """Lets the clients work in spells, so that all processes use `load` cores on average."""
        while not self._clients.stopping.is_set():
            own = resource.getrusage(resource.RUSAGE_SELF)
            used = own.ru_utime + own.ru_stime + self._tested.cpu_s() + self._judge.cpu_s()
            spare = load * self._clock.seconds - used
            if spare > 5:
                self._clients.may_work.set()
            elif spare < -5:
                self._clients.may_work.clear()
            await asyncio.sleep(0.5)

    async def _report(self) -> None:
        """Prints a line each minute."""
        stopping = self._clients.stopping
        while not stopping.is_set():
            due = 60 * (len(self._rss) + 1)
            while self._clock.seconds < due and not stopping.is_set():
                await asyncio.sleep(0.5)
            if self._tested.has_ended:
                return
            self._rss.append(self._tested.rss())
            health = await self._health()
            shown = ("running", "waiting", "blocks_used", "blocks_cached", "preemptions", "steps")
            print(
                f"{self._clock.seconds / 60:.0f} min: {self._rss[-1] / 2**20:.1f} MiB, "
                f"{self._tested.num_threads()} threads, {self._tested.num_open_files()} files, "
                f"{self._clients.num_cases} cases, {dict(self._clients.counts)}, "
                f"{ {name: health.get(name) for name in shown} }, "
                f"pauses {self._clock.pauses}, faults {len(self._clients.faults)}",
                flush=True,
            )

    async def _check_rest(self, num_open_files: int) -> None:
        """Nothing runs, nothing is held, and the memory did not grow."""
        fault = self._clients.fault
        for _ in range(100):
            health = await self._health()
            busy = {name: health.get(name) for name in ("running", "waiting", "blocks_used")}
            if not any(busy.values()):
                break
            await asyncio.sleep(0.1)
        else:
            fault(f"still held when all clients were gone: {busy}")
        print(f"at rest: {health}", flush=True)
        if not health.get("preemptions"):
            fault("nothing was pre-empted: the cache was too large to prove anything")
        if self._tested.num_open_files() > num_open_files + 2:
            fault(f"{self._tested.num_open_files()} open files, {num_open_files} at first")
        warm = self._rss[WARM_UP_MINUTES:]
        if len(warm) >= 6:
            third = len(warm) // 3
            early, late = statistics.median(warm[:third]), statistics.median(warm[-third:])
            print(f"memory: {early / 2**20:.1f} MiB early, {late / 2**20:.1f} MiB late")
            if late > early * 1.03 + GROWTH_BYTES:
                fault("the memory grew")
        seconds = sorted(self._health_s)
        at_99 = seconds[len(seconds) * 99 // 100]
        print(f"/health {len(seconds)} times, 99 % within {at_99 * 1000:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=14)
    parser.add_argument("--load", type=float, default=0.5, help="cores in use on average")
    parser.add_argument("--blocks", type=int, default=35, help="KV blocks of the tested server")
    parser.add_argument("--disk-gb", type=float, default=0.06)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        disk = ["--cache-dir", str(cache), "--cache-disk-gb", str(args.disk_gb)]
        tested = Server(args.model, [*COMMON, *TESTED, *disk], KEYS, folder / "tested")
        judge_keys = [f"judge-key-{i}" for i in range(MOST_CASES + 1)]
        judge = Server(args.model, [*COMMON, *JUDGE], judge_keys, folder / "judge")
        start_short_of_memory(tested, args.blocks)
        judge.start()
        print(tested.log.read_text(), health_of(tested), flush=True)
        clients = Clients(
            tested.port,
            KEYS,
            judge.port,
            judge_keys,
            burst=MAX_SEQUENCES + MAX_QUEUE + 12,
            seed=args.seed,
        )
        try:
            asyncio.run(Soak(tested, judge, clients).run(args.minutes, args.clients, args.load))
        finally:
            codes = tested.stop(), judge.stop()
        if codes != (0, 0):
            clients.fault(f"exit codes {codes}")
        num_bytes = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
        if num_bytes > args.disk_gb * 2**30:
            clients.fault(f"{num_bytes} bytes on disk")
        log = tested.log.read_text()
        if "Traceback" in log:
            clients.fault("a traceback in the server's log")
        if clients.faults:
            kept = Path("soak-server.log")
            kept.write_text(log)
            print(f"the server's log is in {kept.absolute()}")
        print(f"{dict(clients.counts)}\nfaults: {len(clients.faults)}")
    sys.exit(bool(clients.faults))


if __name__ == "__main__":
    main()
