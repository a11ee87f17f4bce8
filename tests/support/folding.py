"""The fold of a changelog, checked at each step: what a consumer that keeps a table up to date would hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakestore.client.changes import ChangeBatch

SYSTEM = ("__change", "__bucket", "__offset", "__timestamp")


def values(row: dict[str, Any]) -> dict[str, Any]:
    """A change's row alone."""
    return {name: value for name, value in row.items() if name not in SYSTEM}


class Fold:
    """Rows by key. Every change must fit what is there, as R20 asks."""

    def __init__(self, key: str = "id", *, images: bool = True, whole_deletes: bool = False) -> None:
        self._key, self._images, self._whole_deletes = key, images, images or whole_deletes
        self._rows: dict[Any, dict[str, Any]] = {}
        self._before: dict[Any, dict[str, Any]] = {}

    def add(self, batches: Iterable[ChangeBatch]) -> Fold:
        """These changes as well."""
        for batch in batches:
            for row in batch.to_pylist():
                self._change(row["__change"], row[self._key], values(row))
        return self

    @property
    def rows(self) -> dict[Any, dict[str, Any]]:
        """What is there now, behind whole commits."""
        assert not self._before, "a -U without its +U"
        return self._rows

    def _change(self, change: str, key: Any, row: dict[str, Any]) -> None:
        held = self._rows.get(key)
        if change == "+I":
            assert held is None, f"+I of {key}, which is there"
            self._rows[key] = row
            return
        assert held is not None, f"{change} of {key}, which is not there"
        if change == "-U":
            assert row == held, f"-U of {key} is not its last image"
            self._before[key] = row
        elif change == "+U":
            assert not self._images or self._before.pop(key) == held
            self._rows[key] = row
        else:
            assert not self._whole_deletes or row == held, f"-D of {key} is not its last image"
            del self._rows[key]
