"""Addresses: which of them only this machine can reach."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from spark_queue.errors import OptionError
from spark_queue.rest.guard.credentials import TOKEN_VARIABLE, USER_VARIABLE, Credentials


def check_address(host: str, credentials: Credentials) -> None:
    """Raise `OptionError` if other machines could call without credentials."""
    if not credentials and not is_loopback(host):
        raise OptionError(
            f"--host {host} lets other machines call without credentials: give --token-file or --users-file "
            f"(or ${TOKEN_VARIABLE} or ${USER_VARIABLE}), or serve on 127.0.0.1",
            option="host",
        )


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address of that name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
