"""Programs that import a name of before go on, and are told the new one."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("spark_queue.events", "Declared", "Declarations"),
        ("spark_queue.events", "Record", "AuditRecord"),
        ("spark_queue.events", "Settings", "EventSettings"),
        ("spark_queue.graph.model", "Consumer", "ConsumerSettings"),
    ],
)
def test_a_name_of_before_is_still_there(module, old, new):
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now called {new}"):
        assert getattr(found, old) is getattr(found, new)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        found.Nothing  # noqa: B018
