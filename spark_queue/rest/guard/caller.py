"""Who calls: callers take turns, and have limits of their own."""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class CallerKey:
    """A caller: the digest of its credential (empty without one), and its network address."""

    credential: bytes
    address: str


#: The server itself.
SERVER = CallerKey(b"", "")


def caller_of(request: Request) -> CallerKey:
    """Return the caller of a request that has passed authentication."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    kind, value = kind.lower(), value.strip()
    digest = b""
    if value:
        digest = hashlib.sha256(f"{kind} {_canonical(kind, value)}".encode()).digest()
    return CallerKey(digest, network_of(request.client.host if request.client else ""))


def _canonical(kind: str, value: str) -> str:
    """Return a credential in one form: base64 has several for the same text."""
    if kind != "basic":
        return value
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return value


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Return an address; of an IPv6 address its network of 64 bits, which one machine may own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
