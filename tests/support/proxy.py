"""A TCP proxy that breaks a connection at an exact byte, to see what a client makes of it.

::

    with CuttingProxy(server.host, server.port) as proxy:
        ...                                              # connect through proxy.port
        proxy.arm(Cut(direction="to_server", after=17, how="reset"))
        ...                                              # the connection that carries the 17th byte from now is reset
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

HOST = "127.0.0.1"
SEND_SECONDS = 30.0
"""How long a peer may take to receive what is forwarded."""

Direction = Literal["to_server", "to_client"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where and how a connection is broken."""

    direction: Direction
    after: int
    """Bytes in this direction that are still forwarded, of those that come after the proxy was armed."""
    how: Literal["reset", "close_half", "hold"]
    """``reset``: both peers are told at once that the connection is gone. ``close_half``: this direction ends, the
    other goes on. ``hold``: nothing more is forwarded either way, until :meth:`CuttingProxy.deliver` or
    :meth:`CuttingProxy.drop`, while the peers believe that all is well: a delay, or an answer that never comes."""


@dataclass(slots=True, eq=False)
class _Way:
    """One direction of one connection."""

    direction: Direction
    source: socket.socket
    target: socket.socket
    waiting: bytes = b""
    """Read, but held back."""
    open: bool = True
    back: _Way = field(init=False)


class CuttingProxy:
    """Forwards TCP connections to a server until it is told to break one; used as a context manager.

    :param host: the server's address.
    :param port: the server's port.
    :param at: where clients connect; by default a free port.
    """

    def __init__(self, host: str, port: int, *, at: int = 0) -> None:
        self._server = (host, port)
        self._listener = socket.create_server((HOST, at))
        self.port: int = self._listener.getsockname()[1]
        """Where clients connect, on 127.0.0.1."""
        self._selector = selectors.DefaultSelector()
        self._alarm, self._bell = socket.socketpair()
        self._guard = threading.Lock()
        self._cut: Cut | None = None
        self._counted: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self._happened = threading.Event()
        self._held: list[_Way] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="cutting-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._alarm, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping = True
        self._bell.send(b"x")
        self._thread.join(timeout=60)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._bell.close()
        self.drop()

    def arm(self, cut: Cut | None = None) -> None:
        """Count from zero, and break the connection that reaches the cut; None only counts."""
        with self._guard:
            self._counted = {"to_server": 0, "to_client": 0}
            self._happened.clear()
            self._cut = cut

    def disarm(self) -> None:
        """Break nothing from now on; the count stands."""
        with self._guard:
            self._cut = None

    def counted(self, direction: Direction) -> int:
        """Return how many bytes have been forwarded since :meth:`arm`."""
        with self._guard:
            return self._counted[direction]

    def wait_for_cut(self, seconds: float) -> bool:
        """Wait until the cut has happened; tells whether it has."""
        return self._happened.wait(seconds)

    def hold(self) -> None:
        """Forward nothing more on the connections that are open now; new ones work."""
        with self._guard:
            ways = [key.data for key in self._selector.get_map().values() if isinstance(key.data, _Way)]
            for way in ways:
                self._forget(way.source)
                self._held.append(way)

    def deliver(self) -> None:
        """Let the held connections go on: what was sent meanwhile arrives late."""
        with self._guard:
            held, self._held = self._held, []
            for way in held:
                waiting, way.waiting = way.waiting, b""
                with contextlib.suppress(OSError):
                    way.target.sendall(waiting)
                self._selector.register(way.source, selectors.EVENT_READ, way)
        self._bell.send(b"x")

    def drop(self) -> None:
        """Reset the held connections: what was sent meanwhile never arrives."""
        with self._guard:
            held, self._held = self._held, []
            for way in held:
                _reset(way.source)

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._alarm:
                    self._alarm.recv(1024)
                else:
                    with self._guard:
                        self._forward(key.data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server, timeout=SEND_SECONDS)
        except OSError:
            _reset(client)
            return
        client.settimeout(SEND_SECONDS)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there = _Way("to_server", client, server)
        there.back = _Way("to_client", server, client)
        there.back.back = there
        for way in (there, there.back):
            self._selector.register(way.source, selectors.EVENT_READ, way)

    def _forward(self, way: _Way) -> None:
        if way.source.fileno() < 0 or way.source not in self._selector.get_map():
            return  # an event of before the connection was broken
        try:
            data = way.source.recv(65536)
        except OSError:
            data = b""  # gone; what it sent before has been forwarded
        if not data:
            self._end(way)
            return
        cut = self._cut
        room = len(data)
        if cut is not None and cut.direction == way.direction:
            room = min(room, max(0, cut.after - self._counted[way.direction]))
        try:
            way.target.sendall(data[:room])
        except OSError:
            self._end(way)
            return
        self._counted[way.direction] += room
        if cut is not None and cut.direction == way.direction and self._counted[way.direction] >= cut.after:
            self._cut = None
            self._break(way, cut, data[room:])
            self._happened.set()

    def _break(self, way: _Way, cut: Cut, rest: bytes) -> None:
        match cut.how:
            case "reset":
                for end in (way.source, way.target):
                    self._forget(end)
                    _reset(end)
            case "close_half":
                self._end(way)
            case "hold":
                for one in (way, way.back):
                    if one.open:
                        self._forget(one.source)
                        self._held.append(one)
                way.waiting = rest

    def _end(self, way: _Way) -> None:
        """End one direction; the connection when both have ended."""
        way.open = False
        self._forget(way.source)
        with contextlib.suppress(OSError):
            way.target.shutdown(socket.SHUT_WR)
        if not way.back.open:
            way.source.close()
            way.target.close()

    def _forget(self, end: socket.socket) -> None:
        if end.fileno() >= 0 and end in self._selector.get_map():
            self._selector.unregister(end)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
