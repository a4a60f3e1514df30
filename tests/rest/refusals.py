"""The check of a call that a server must refuse."""

from __future__ import annotations

from typing import Any

import httpx

#: Method, path, what is sent, the status, and a part of the detail.
Call = tuple[str, str, dict[str, Any], int, str]


def check_refused(http: httpx.Client, call: Call) -> None:
    """Make a call. Its answer must be the problem document that the call names."""
    method, path, how, status, detail = call
    refused = http.request(method, path, **how)
    assert refused.status_code == status, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["status"] == status and detail in refused.json()["detail"]
