"""`/docs` and `/redoc` work without internet: all their files come from this server."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

PAGES = ["/docs", "/redoc"]


def links(page: str) -> list[str]:
    """What a page loads: attributes, and the description that its script names."""
    return re.findall(r"""(?:href|src|spec-url)\s*=\s*["']([^"']+)["']|url:\s*'([^']+)'""", page)


@pytest.mark.parametrize("path", PAGES)
def test_all_that_a_page_loads_comes_from_this_server(server, path):
    page = httpx.get(server.url + path)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert not re.search(r"(?:https?:)?//[\w.-]+\.\w", page.text), "it has a URL of another host"
    found = ["".join(one) for one in links(page.text)]
    assert len(found) >= 3, found
    for one in found:
        answer = httpx.get(urljoin(server.url + path, one))
        assert urlsplit(str(answer.url)).netloc == urlsplit(server.url).netloc
        assert answer.status_code == 200, one
        if one.endswith(".css"):
            assert not re.search(r"@import|url\(\s*[\"']?(?!data:|[\"'])", answer.text), one


@pytest.mark.parametrize("path", PAGES)
def test_a_browser_may_ask_no_other_host_for_a_page(server, path):
    policy = httpx.get(server.url + path).headers["content-security-policy"]
    rules = dict(one.strip().split(" ", 1) for one in policy.split(";"))
    assert rules["default-src"] == "'self'"
    assert set(" ".join(rules.values()).split()) <= {"'self'", "'unsafe-inline'", "'none'", "data:", "blob:"}


def test_only_the_pages_have_the_policy(http):
    assert "content-security-policy" not in http.get("/q").headers


@pytest.mark.parametrize(
    "path", ["/docs/static/../app.py", "/docs/static/%2e%2e/core.py", "/docs/static/", "/docs/static/no.js"]
)
def test_nothing_but_these_files_is_served(http, path):
    refused = http.get(path)
    assert refused.status_code == 404 and refused.headers["content-type"] == "application/problem+json"
