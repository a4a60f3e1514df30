"""Bytes as text that fits into a URL: base64url without padding (RFC 4648, section 5)."""

from __future__ import annotations

import base64
import binascii


def encode_base64url(data: bytes) -> str:
    """Return bytes as text."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Return the bytes of a text. Raises `ValueError` for other text."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
