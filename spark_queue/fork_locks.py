"""Locks that a forked process finds free, though another thread of its parent held them."""

from __future__ import annotations

import os
import threading
from weakref import WeakKeyDictionary

_owners: WeakKeyDictionary[object, list[str]] = WeakKeyDictionary()


def add_lock(owner: object, name: str) -> None:
    """Give an object a lock, as the attribute `name`; a forked process gets another one.

    It is for short steps, which leave nothing half done that a forked process uses.
    """
    setattr(owner, name, threading.Lock())
    _owners.setdefault(owner, []).append(name)


def _renew_all() -> None:
    for owner, names in list(_owners.items()):
        for name in names:
            setattr(owner, name, threading.Lock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
