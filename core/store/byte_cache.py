"""Values that a process keeps in memory, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class ByteCache:
    """Keeps the values that were used last. Threads share it.

    :param limit: maximum of the bytes of all values together. A larger value is not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        """Bytes of the kept values, as their users have measured them."""
        self._guard = threading.RLock()  # a handler of a signal may read a store, too
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """Return a value; None if it is not kept."""
        with self._guard:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value, in place of an earlier one of its key, and drop those that were not used for longest.

        :param size: its bytes.
        """
        if size > self.limit:
            return
        with self._guard:
            self.bytes += size - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = (value, size)
            while self.bytes > self.limit:
                self.bytes -= self._kept.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop all values."""
        with self._guard:
            self._kept.clear()
            self.bytes = 0
