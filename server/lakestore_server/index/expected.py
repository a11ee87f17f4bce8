"""The index entries of a commit that is not durable yet: the commit loop sees them, readers do not."""

from __future__ import annotations

from collections.abc import Sequence

from lakestore_server.index.entry import Ints
from lakestore_server.index.keys import IndexKeys
from lakestore_server.index.overlay import Overlay


class ExpectedEntries:
    """The entries of one commit, arranged for look-ups of the tables that are asked for."""

    __slots__ = ("_layers", "entries")

    def __init__(self, entries: Sequence[tuple[IndexKeys, Ints]]) -> None:
        self.entries = entries
        self._layers: dict[bytes, Overlay] = {}

    def arranged(self, prefix: bytes) -> Overlay | None:
        """The entries of one table; None if there are none. On the commit loop."""
        mine = [(keys, values) for keys, values in self.entries if len(keys) and keys.prefix == prefix]
        if mine and prefix not in self._layers:
            layer = Overlay()
            for keys, values in mine:
                layer.put(keys, values)
            self._layers[prefix] = layer  # only when it is full: an error above is one caller's, and the loop goes on
        return self._layers.get(prefix)
