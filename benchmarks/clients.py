"""Client processes that run transactions at once, and how long each transaction took."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier, Event
from threading import BrokenBarrierError

from benchmarks.outbox import Step
from benchmarks.processor import ProcessorClock, no_server

fork = multiprocessing.get_context("fork")
PATIENCE = 120.0
"""Seconds until a client that does not answer is given up."""

Way = Callable[[], AbstractContextManager[Step]]
"""Opens what one client needs and gives a function that runs one transaction."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What clients did at once."""

    seconds: list[float]
    """Of every transaction of all clients."""
    client: float
    """Processor seconds of all clients."""
    server: float
    """Processor seconds of the server meanwhile."""

    @property
    def processor(self) -> float:
        """Processor seconds of one transaction, of client and server together."""
        return (self.client + self.server) / len(self.seconds)


def run_clients(
    way: Way, *, clients: int, seconds: float, warm_up: int = 20, server: ProcessorClock = no_server
) -> Ran:
    """Let processes run transactions at once.

    :param warm_up: transactions of each client that do not count.
    :param server: the clock of the server that they use.
    """
    ready, counted = fork.Barrier(clients + 1), fork.Event()
    receivers = []
    processes = []
    for number in range(clients):
        receiver, sender = fork.Pipe(duplex=False)
        arguments = (way, number, seconds, warm_up, ready, counted, sender)
        process = fork.Process(target=_client, args=arguments, daemon=True)
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    with contextlib.suppress(BrokenBarrierError):  # a client that failed says why below
        ready.wait(PATIENCE)
    before = server()
    answers = [_answer(receiver, seconds + PATIENCE) for receiver in receivers]
    used = server() - before
    counted.set()
    for process in processes:
        process.join(PATIENCE)
    return Ran([second for taken, _ in answers for second in taken], sum(own for _, own in answers), used)


def _client(
    way: Way, number: int, seconds: float, warm_up: int, ready: Barrier, counted: Event, sender: Connection
) -> None:
    try:
        with way() as step:
            first = number * 1_000_003
            for i in range(first, first + warm_up):
                step(i)
            ready.wait(PATIENCE)
            taken = []
            i, end, used = first + warm_up, time.perf_counter() + seconds, time.process_time()
            while (begun := time.perf_counter()) < end:
                step(i)
                taken.append(time.perf_counter() - begun)
                i += 1
            sender.send((taken, time.process_time() - used))
            counted.wait(PATIENCE)  # a server's process for this client must live until its time is read
    except BaseException:
        ready.abort()
        sender.send(traceback.format_exc())


def _answer(receiver: Connection, seconds: float) -> tuple[list[float], float]:
    if not wait([receiver], seconds):
        raise RuntimeError(f"a client has not answered for {seconds:.0f} s")
    answer: tuple[list[float], float] | str = receiver.recv()
    if isinstance(answer, str):
        raise RuntimeError(f"a client failed:\n{answer}")
    return answer


@contextlib.contextmanager
def repeating(work: Callable[[], object], *, pause: float) -> Iterator[None]:
    """Run something again and again in a process of its own, while a block runs.

    :param pause: seconds between two runs.
    """
    stop = fork.Event()

    def run() -> None:
        while not stop.wait(pause):
            work()

    process = fork.Process(target=run, daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(PATIENCE)
    if process.exitcode:
        raise RuntimeError(f"what runs beside the clients ended with {process.exitcode}")
