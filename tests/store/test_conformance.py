"""Every registered store keeps the contract, on its real server.

A store registered under a new scheme joins by itself: give a fixture `<scheme>_url` in tests/conftest.py.
"""

from __future__ import annotations

import pytest

from spark_queue.store import STORES
from spark_queue.store.conformance import StoreContract

#: One scheme for each store class.
SCHEMES = {path: scheme for scheme, (path, _) in reversed(STORES.items())}.values()


@pytest.fixture(params=sorted(SCHEMES))
def scheme(request):
    return request.param


class TestStore(StoreContract):
    @pytest.fixture
    def url(self, scheme, url_of):
        return url_of(scheme)

    @pytest.fixture
    def unreachable(self, scheme):
        return None if scheme == "sqlite" else f"{scheme}://user:sesame@127.0.0.1:1/0"
