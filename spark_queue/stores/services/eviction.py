"""Databases that throw away what they hold when their memory is full: Redis, with an eviction policy.

Whoever opens such a store is warned, once in a process. A query that is to be exactly once is refused.
"""

from __future__ import annotations

import logging
import time

from spark_queue.errors import OptionError
from spark_queue.options.masking import mask
from spark_queue.stores.base import Store

log = logging.getLogger(__name__)

#: Whether stores look by themselves when they open. Spark's workers do not: the driver checks (`check_eviction`).
by_itself = True

#: Seconds for which a database that throws nothing away is not asked again: Spark plans a write anew for each batch.
BELIEVED = 60.0

_told: dict[str, object] = {}  # of which URLs this process was told, and by whom
_harmless: dict[str, float] = {}  # URLs, believed until (monotonic s)


def evicts(policy: str | None) -> bool:
    """Whether messages are thrown away by this policy of Redis, and not keys with an end alone.

    Of our keys those of the history have an end, and the marks that keep late attempts from staging again.
    """
    return bool(policy) and not str(policy).startswith("volatile-")


def known(url: str) -> bool:
    """Whether this process was told of the database."""
    return url in _told


def tell(url: str, policy: str | None) -> None:
    """Warn about a database that throws data away by this policy, once in a process. See `Store.eviction`."""
    me = object()
    if _told.setdefault(url, me) is not me or policy == "":
        return
    shown = mask(url)
    if policy is None:
        log.info("%s: its user may not call INFO, so it is not known whether maxmemory-policy is noeviction", shown)
        return
    what = "messages, also acknowledged ones" if evicts(policy) else "the history before its time"
    log.warning(
        "%s: when its memory is full, it throws away %s: maxmemory-policy is %s. Set maxmemory-policy to noeviction",
        shown, what, policy,
    )  # fmt: skip


def check_eviction(store: Store, *, exactly_once: bool, allowed: bool) -> None:
    """Warn if the database throws data away. Raise `OptionError` if `exactly_once` is wanted there and not `allowed`.

    `allowed`: the option `allowEviction`.
    """
    if _harmless.get(store.url, 0.0) > time.monotonic():
        return
    policy = store.eviction()
    tell(store.url, policy)
    if not evicts(policy):
        _harmless[store.url] = time.monotonic() + BELIEVED
    elif exactly_once and not allowed:
        raise OptionError(
            f"option 'delivery' is exactly-once, but when its memory is full, {mask(store.url)} throws acknowledged "
            f"messages away: its maxmemory-policy is {policy}. Set maxmemory-policy to noeviction, or the option "
            "delivery to at-least-once. With allowEviction=true messages can be lost",
            option="delivery",
        )
