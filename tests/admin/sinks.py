"""Helpers of several tests of operations."""

from __future__ import annotations

from spark_queue import (
    ledgers,
)


def seen(url, sink):
    return next((one for one in ledgers(url) if one.sink == sink), None)
