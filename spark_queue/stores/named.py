"""Stores by name: the databases of a write, a graph or a service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spark_queue.stores import open_store
from spark_queue.stores.base import Store


class NamedStores(Mapping[str, Store]):
    """Stores by name, each opened at its first use. A single store may have the name "".

    Pickled, it is its URLs. Threads may share it, as they may share a store.
    """

    def __init__(self, urls: Mapping[str, str], *, retry_timeout: int = 5_000) -> None:
        """Open nothing yet. `retry_timeout` (ms): as in `open_store`."""
        self._urls = dict(urls)
        self._retry_timeout = retry_timeout
        self._open: dict[str, Store] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def __getitem__(self, name: str) -> Store:
        if name not in self._open:
            # Another thread may be first.
            self._open.setdefault(name, open_store(self._urls[name], retry_timeout=self._retry_timeout))
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __len__(self) -> int:
        return len(self._urls)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._urls)})"  # a URL may hold a password

    @property
    def primary_names(self) -> list[str]:
        """One name for each URL: the first one."""
        return list(dict.fromkeys(map(self.primary_name, self._urls)))

    def primary_name(self, name: str) -> str:
        """Return the first name with the URL of this one."""
        return next(one for one, url in self._urls.items() if url == self._urls[name])

    def write_counts(self, names: Iterable[str]) -> None:
        """Write the counts of those of these stores that are open: see `Store.write_counts`."""
        for name in names:
            if (store := self._open.get(name)) is not None:
                store.write_counts()

    def close(self) -> None:
        """Close the stores that are open."""
        for store in self._open.values():
            store.close()
        self._open = {}

    def __enter__(self) -> NamedStores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
