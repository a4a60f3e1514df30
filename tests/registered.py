"""Which stores the tests run on: those of the registry, with what each one declares."""

from __future__ import annotations

import itertools

from spark_queue.options.url import StoreUrl
from spark_queue.stores import STORES, store_class


def schemes(*, server: bool | None = None) -> list[str]:
    """Return a scheme for each registered store, embedded ones first; `server`: only those with one, or without."""
    own = [scheme for scheme, one in STORES.items() if not one.variant_of]
    return sorted((one for one in own if server in (None, not embedded(one))), key=lambda one: not embedded(one))


def embedded(scheme: str) -> bool:
    """Return whether the store needs no server."""
    return not STORES[scheme].server


def pairs() -> list[tuple[str, str]]:
    """Return each store with the next one, as source and target, and each one that has a server with itself."""
    found = schemes()
    served = schemes(server=True)
    return [*zip(found, [*found[1:], found[0]], strict=True), *zip(served, served, strict=True)]


def default_layout(scheme: str) -> str:
    """Return the layout that a URL without `layout` has; empty for a store that has only one."""
    usual = store_class(f"{scheme}://host/db")
    return usual.layout_name if usual.layouts else ""


def layouts(scheme: str) -> list[str]:
    """Return the layouts of a store, the default one first; one empty name for a store that has only one."""
    default = default_layout(scheme)
    return [default, *(one for one in store_class(f"{scheme}://host/db").layouts if one != default)]


def kinds() -> list[str]:
    """Return each layout of each store as `scheme layout`."""
    return list(itertools.chain(*([f"{one} {layout}" for layout in layouts(one)] for one in schemes())))


def is_default(kind: str) -> bool:
    """Return whether that is the default layout of its store."""
    scheme, _, layout = kind.partition(" ")
    return layout == default_layout(scheme)


def in_layout(url: str, layout: str) -> str:
    """Return the URL of a store, for one of its layouts."""
    return StoreUrl.parse(url).with_layout(layout) if layout else url
