"""Helpers of several tests of writes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.every_store


class Killed(BaseException):
    """Ends a driver, or a task, as a kill does: nothing is tidied up."""
