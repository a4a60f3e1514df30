"""A bug that a test finds: see planted.py."""

from __future__ import annotations

from dataclasses import dataclass

CONFORMANCE = "tests/stores/test_conformance.py::TestStore::"


@dataclass(frozen=True)
class Bug:
    """An error that one might well make: in a file below spark_queue, `wrong` in the place of `right`.

    `test` is the test of `make test` that fails with it. `worlds`: whether the worlds of `make chaos` find it.
    """

    file: str
    right: str
    wrong: str
    test: str
    worlds: bool = False
