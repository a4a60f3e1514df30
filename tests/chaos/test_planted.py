"""Each planted bug is caught by its test, which is one of `make test`."""

from __future__ import annotations

import pytest

from tests.chaos.planted import BUGS, prove

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught_by_its_test(name, tmp_path):
    prove(name, tmp_path)
