"""What tests of several folders need to look at Redis itself."""

from __future__ import annotations

import pytest
import redis


@pytest.fixture
def raw(redis_url):
    """What other programs see of Redis."""
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client
