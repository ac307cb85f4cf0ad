"""Attack a server over loopback and kill processes while they write; print one table (`make test-attack`).

    python tests/attack.py
    python tests/attack.py --kills 0 --requests 2000        # the server only, shorter

At the same time, on one server: sessions under load, malformed requests, hostile connections (endless bodies, silence,
pipelined requests, unread answers; each is reopened when closed), expensive requests with a token, and requests for /health.
Then the server gets SIGTERM. Then SIGKILL at random moments: training must end with the same weights, the experience bank
must keep every acknowledged write, a restarted server must repeat every acknowledged action.
Exits with 1 if something failed or --limit-s was exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / part) for part in ("serving", "companions", "learns", "../benchmarks", "..")]

import serving_load  # noqa: E402
from forked import start  # noqa: E402
from serve import make_modules  # noqa: E402
from served import TOKEN, Served  # noqa: E402
from test_experience_bank import kill_writers  # noqa: E402
from test_hostile_requests import flood  # noqa: E402
from test_resume import FLAGS  # noqa: E402

HEALTH_S, STOP_S, MEMORY_MB, REQUEST_S = 1.0, 8.0, 1000, 10.0
"""goals, and the time a request may take to arrive"""
KNOWN = f"authorization: Bearer {TOKEN}\r\n".encode()
BEGIN = {"goal": "put a hot mug in cabinet.", "family": "heat", "seed": 7}
SEEN = "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a microwave 1, and a fridge 1."


@dataclass
class Suite:
    """One line of the table."""

    name: str
    attempts: int = 0
    failures: int = 0
    seconds: list[float] = field(default_factory=list)
    memory_mb: float | None = None
    why: set[str] = field(default_factory=set)

    def attempt(self, began: float, failed: str = "") -> None:
        self.attempts += 1
        self.seconds.append(time.perf_counter() - began)
        if failed:
            self.failures += 1
            self.why.add(failed[:200])

    def line(self) -> str:
        p99 = f"{1000 * sorted(self.seconds)[int(0.99 * (len(self.seconds) - 1))]:.0f}" if self.seconds else "-"
        memory = "-" if self.memory_mb is None else f"{self.memory_mb:+.0f}"
        return f"{self.name:<22}{self.attempts:>10}{self.failures:>10}{p99:>12}{memory:>14}"


def do_sessions(port: int, modules: Path, sessions: int, requests: int) -> Suite:
    """Concurrent episodes; every answer must belong to its session and turn."""
    suite, load = Suite("sessions"), serving_load.Load(requests)
    serving_load.TOKEN = TOKEN
    parts = serving_load.make_parts(["heat", "pick"], sessions, 20)

    async def play(part: Any) -> None:
        connection = serving_load.Connection(port)
        while load.left > 0:
            began = time.perf_counter()
            try:
                await serving_load.play(connection, part, load)
            except (serving_load.Answer, OSError, EOFError, AssertionError) as error:
                suite.attempt(began, repr(error))
                connection.close()

    async def run() -> None:
        await asyncio.gather(*map(play, parts))

    asyncio.run(run())
    suite.attempts, suite.seconds = suite.attempts + len(load.seconds), load.seconds
    return suite


def do_malformed(port: int, count: int) -> Suite:
    suite, began = Suite("malformed requests"), time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        floods = [pool.submit(flood, port, seed, count // 16) for seed in range(16)]
        statuses = [status for done in floods for status in done.result()]
    wrong = [status for status in statuses if not 400 <= status < 500]
    suite.attempts, suite.failures, suite.why = len(statuses), len(wrong), {f"status {status}" for status in wrong}
    suite.seconds = [(time.perf_counter() - began) / len(statuses)]
    return suite


HOSTILE = (
    (b"GET /health HTTP/1.1\r\n" + b"a:\r\n" * 200, b"a:\r\n" * 4000),
    (b"POST /health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a:\r\n" * 4000),
    (b"POST /health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000),
    (b"POST /sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n", b"x"),
    (b"POST /sessions HTTP/1.1\r\nhost: x\r\n" + KNOWN + b"transfer-encoding: chunked\r\n\r\nfff\r\n", b" "),
    (b"GET /health HTTP/1.1\r\nhost: x\r\nx: ", b"x"),
    (b"", b"\r\n"),
    (b"GET / HTTP/1.1\r\n\r\n" * 2000, b"GET / HTTP/1.1\r\n\r\n" * 2000),
    (b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
)
"""(sent first, sent every second after it); answers are not read"""


def do_connections(port: int, count: int, over: Any) -> Suite:
    """`count` connections from five addresses. It is a failure if one stays open long after its request timed out."""
    suite = Suite("hostile connections")

    async def hold(number: int) -> None:
        first, then = HOSTILE[number % len(HOSTILE)]
        while not over.is_set():
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            began = time.perf_counter()
            try:
                connection.bind((f"127.0.0.{1 + number % 5}", 0))
                await asyncio.wait_for(loop.sock_connect(connection, ("127.0.0.1", port)), 30)
                while not over.is_set() and time.perf_counter() - began < 3 * REQUEST_S + 20:
                    await asyncio.wait_for(loop.sock_sendall(connection, first), 1)
                    first = then
                    await asyncio.sleep(1)
                suite.attempt(began, "" if over.is_set() else f"{HOSTILE[number % len(HOSTILE)][0][:60]!r} was held")
            except TimeoutError:  # the server does not read on; it must still close the connection
                try:
                    while not over.is_set() and time.perf_counter() - began < 3 * REQUEST_S + 20:
                        connection.send(b"x")
                        await asyncio.sleep(1)
                except BlockingIOError:
                    await asyncio.sleep(1)
                except OSError:
                    pass
                suite.attempt(began)
            except OSError:
                suite.attempt(began)
                await asyncio.sleep(0.5)
            finally:
                connection.close()

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await asyncio.gather(*map(hold, range(count)))

    loop: Any = None
    asyncio.run(run())
    return suite


def do_expensive(port: int, over: Any) -> Suite:
    """With a token: many expensive tasks at once, and texts that are slow for bad regexes. Each must be answered."""
    suite = Suite("expensive requests")
    bodies = [("/sessions", {"skill": "heat", "play": {"number": 511}})] * 200
    bodies += [("/sessions", {**BEGIN, "goal": "The " * 4096}), ("/sessions", {**BEGIN, "data": {"x": [[]] * 60_000}})]

    async def ask(path: str, body: Any) -> Any:
        began, connection = time.perf_counter(), serving_load.Connection(port)
        try:
            answer = await asyncio.wait_for(connection.ask("POST", path, body), 90)
        except serving_load.Answer as error:
            suite.attempt(began, "" if error.status in (413, 422, 429, 503, 504) else repr(error))
        except (OSError, EOFError, TimeoutError) as error:
            suite.attempt(began, "" if over.is_set() else repr(error))
        else:
            suite.attempt(began)
            return answer
        finally:
            connection.close()
        return None

    async def run() -> None:
        serving_load.TOKEN = TOKEN
        while not over.is_set():
            responses = await asyncio.gather(*(ask(path, body) for path, body in bodies))
            responses.append(await ask("/sessions", BEGIN))
            for session in [found["session"] for found in responses if found]:
                if not found_hosted(responses, session):
                    await ask(f"/sessions/{session}/observe", {"observation": "The " * 4096})
                await ask(f"/sessions/{session}/end", {})

    def found_hosted(responses: list[Any], session: str) -> bool:
        return next(found["hosted"] for found in responses if found and found["session"] == session)

    asyncio.run(run())
    return suite


def ask_health(server: Served, suite: Suite) -> None:
    began = time.perf_counter()
    try:
        status = server.send("GET", "/health", token=None)[0]
        took = time.perf_counter() - began
        suite.attempt(began, f"{status} after {took:.1f} s" if status != 200 or took > HEALTH_S else "")
    except OSError as error:
        suite.attempt(began, repr(error))


def memory_of(server: Served) -> float:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[0]) / 1000


def attack_server(modules: Path, options: argparse.Namespace) -> list[Suite]:
    context = multiprocessing.get_context("fork")
    over, answers = context.Event(), context.Queue()

    def launch(work: Callable[..., Suite], *arguments: Any) -> Any:
        def run() -> None:
            os.nice(19)  # real attackers would not use this machine's cores
            answers.put(work(*arguments))

        process = context.Process(target=run, daemon=True)
        process.start()
        return process

    server = Served(modules, "--answer-s", str(REQUEST_S), "--sessions", "320")
    health, stop = Suite("/health meanwhile"), Suite("SIGTERM meanwhile")
    server.send("GET", "/health")
    idle = peak = memory_of(server)
    launch(do_connections, server.port, options.connections, over)
    launch(do_expensive, server.port, over)
    bounded = [
        launch(do_sessions, server.port, modules, options.sessions, options.requests),
        launch(do_malformed, server.port, options.malformed),
    ]
    suites = []
    while len(suites) < len(bounded) and server.process.code is None:
        ask_health(server, health)
        peak = max(peak, memory_of(server))
        time.sleep(0.2)
        while not answers.empty():
            suites.append(answers.get())
    health.memory_mb = peak - idle
    if health.memory_mb > MEMORY_MB:
        health.failures, health.why = health.failures + 1, {*health.why, f"memory grew by {health.memory_mb:.0f} MB"}
    began = time.perf_counter()
    server.process.terminate()
    over.set()
    status = server.process.wait()
    stop.attempt(began, f"status {status}" if status or time.perf_counter() - began > STOP_S else "")
    return [*suites, answers.get(), answers.get(), health, stop]


def kill_training(place: Path, kills: int, draw: random.Random) -> Suite:
    """A run that is killed and resumed again and again ends with the same weights as an uninterrupted one."""
    suite, words = Suite("SIGKILL in training"), [*FLAGS, "--iterations", "8"]
    start("train", *words, "--out", place / "whole").finish()
    expected = json.loads((place / "whole" / "summary.json").read_text())["digest"]
    runs = 0
    while suite.attempts < kills:
        run, runs = place / f"broken-{runs}", runs + 1
        while not (run / "summary.json").exists():
            again = (run / "settings.json").exists()
            process = start("train", *(("--resume", run) if again else (*words, "--out", run)))
            if suite.attempts < kills:
                deadline = time.monotonic() + draw.uniform(0.3, 3.0)
                process.until(lambda limit=deadline: time.monotonic() > limit)  # type: ignore[misc]
                began = time.perf_counter()
                if process.code is None:
                    process.kill()
                    suite.attempt(began)
            if process.code is None:
                process.wait()
            if process.code not in (0, -signal.SIGKILL):
                suite.failures, suite.why = suite.failures + 1, {*suite.why, process.err[-200:]}
                break
        else:
            found = json.loads((run / "summary.json").read_text())["digest"]
            if found != expected:
                suite.failures, suite.why = suite.failures + 1, {*suite.why, f"{run.name} ended with other weights"}
    suite.seconds = []
    return suite


def kill_bank(place: Path, kills: int, draw: random.Random) -> Suite:
    suite = Suite("SIGKILL in the bank", kills)
    try:
        kill_writers(place / "bank.sqlite", kills, draw)
    except AssertionError as error:
        suite.failures, suite.why = 1, {str(error)}
    return suite


def kill_servers(modules: Path, kills: int, draw: random.Random) -> Suite:
    """A restarted server repeats every acknowledged action and answers 410 for old sessions."""
    suite, acknowledged, old = Suite("SIGKILL in serving", kills), dict[int, str](), ""

    def play(server: Served) -> None:
        path = server.begin(**BEGIN)  # type: ignore[arg-type]
        for turn in range(1, 200):
            action = server.post(f"{path}/observe", {"observation": SEEN, "turn": turn, "effective": False})["action"]
            if acknowledged.setdefault(turn, action) != action:
                raise AssertionError(f"turn {turn} was {acknowledged[turn]!r} before, and is {action!r}")

    for _ in range(kills):
        server = Served(modules)
        if old and server.ask("GET", old)[0] != 410:
            suite.failures, suite.why = suite.failures + 1, {*suite.why, "an old session is not gone"}
        old = server.begin(**BEGIN)  # type: ignore[arg-type]
        with ThreadPoolExecutor(1) as pool:
            playing = pool.submit(play, server)
            time.sleep(draw.uniform(0.0, 1.0))
            server.process.kill()
            if isinstance(playing.exception(), AssertionError):
                suite.failures, suite.why = suite.failures + 1, {*suite.why, str(playing.exception())}
    return suite


class LimitReached(BaseException):
    """A BaseException, because the code above catches many exceptions."""


def stop_at_limit(*_: Any) -> None:
    raise LimitReached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=Path, help="household modules heat and pick (default: small ones are made)")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10_000, help="turns of all sessions together")
    parser.add_argument("--malformed", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=2048)
    parser.add_argument("--kills", type=int, default=100, help="of training, bank and serving together")
    parser.add_argument("--limit-s", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, stop_at_limit)
    signal.alarm(options.limit_s)
    draw, suites = random.Random(options.seed), list[Suite]()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        try:
            modules = options.modules or make_modules(place)
            suites += attack_server(modules, options)
            if options.kills:
                suites.append(kill_bank(place, 2 * options.kills // 5, draw))
                suites.append(kill_servers(modules, options.kills - 2 * (2 * options.kills // 5), draw))
                suites.append(kill_training(place, 2 * options.kills // 5, draw))
        except LimitReached:
            suites.append(Suite(f"--limit-s {options.limit_s} is over", failures=1))
    print(f"{'suite':<22}{'attempts':>10}{'failures':>10}{'p99 (ms)':>12}{'memory (MB)':>14}")
    for suite in suites:
        print(suite.line())
    for suite in suites:
        for why in sorted(suite.why)[:5]:
            print(f"{suite.name}: {why}", file=sys.stderr)
    return 1 if any(suite.failures for suite in suites) else 0


if __name__ == "__main__":
    sys.exit(main())
