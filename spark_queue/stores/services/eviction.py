"""Checks of databases that evict data when their memory is full: Redis with an eviction policy.

A process that opens such a store logs one warning. An exactly-once query is refused.
"""

from __future__ import annotations

import logging
import time

from spark_queue.errors import OptionError
from spark_queue.options.masking import mask
from spark_queue.stores.base import Store

log = logging.getLogger(__name__)

#: Whether a store checks its database when it opens. In Spark's workers it does not: the driver
#: does (`check_eviction`).
check_on_open = True

#: How long a database that evicts no messages is not checked again (s): Spark plans a write for
#: each batch.
SAFE_CACHE_SECONDS = 60.0

_checked: dict[str, object] = {}  # URL -> the call that warned of it
_safe_until: dict[str, float] = {}  # URL -> cached until (monotonic s)


def evicts(policy: str | None) -> bool:
    """Return whether this policy of Redis evicts messages, and not only keys that expire.

    Of our keys, those of the history expire, and the marks against late attempts to stage.
    """
    return bool(policy) and not str(policy).startswith("volatile-")


def is_checked(url: str) -> bool:
    """Return whether this process has checked the database."""
    return url in _checked


def warn_once(url: str, policy: str | None) -> None:
    """Log, once in a process, that a database evicts data by this policy: see `Store.eviction`."""
    token = object()
    if _checked.setdefault(url, token) is not token or policy == "":
        return
    shown = mask(url)
    if policy is None:
        log.info("%s: its user may not call INFO, so it is not known whether maxmemory-policy is noeviction", shown)
        return
    evicted = "messages, also acknowledged ones" if evicts(policy) else "the history before its time"
    log.warning(
        "%s: when its memory is full, it throws away %s: maxmemory-policy is %s. Set maxmemory-policy to noeviction",
        shown, evicted, policy,
    )  # fmt: skip


def check_eviction(store: Store, *, exactly_once: bool, allowed: bool) -> None:
    """Warn if the database evicts data.

    Raise `OptionError` if it evicts messages, `exactly_once` is set, and `allowed` (the option
    `allowEviction`) is not.
    """
    if _safe_until.get(store.url, 0.0) > time.monotonic():
        return
    policy = store.eviction()
    warn_once(store.url, policy)
    if not evicts(policy):
        _safe_until[store.url] = time.monotonic() + SAFE_CACHE_SECONDS
    elif exactly_once and not allowed:
        raise OptionError(
            f"option 'delivery' is exactly-once, but when its memory is full, {mask(store.url)} throws acknowledged "
            f"messages away: its maxmemory-policy is {policy}. Set maxmemory-policy to noeviction, or the option "
            "delivery to at-least-once. With allowEviction=true messages can be lost",
            option="delivery",
        )
