"""Docstrings name the errors that a function raises."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_queue
from tests.project.raises import Module, unnamed_in

PACKAGE = Path(spark_queue.__file__).parent


#: An error that a function cannot raise, since it calls another one with arguments that are right.
NEVER: set[str] = set()


def test_each_docstring_names_the_errors_that_its_function_raises():
    found = {line.partition(": ")[2].partition(",")[0]: line for line in unnamed_in(sorted(PACKAGE.rglob("*.py")))}
    assert {name: line for name, line in found.items() if name not in NEVER} == {}
    assert found.keys() >= NEVER, "it leaves the list"


HEAD = '''
class Lost(Exception): ...

def check(row):
    if not row:
        raise OptionError("empty")

def refused(row) -> MessageError:
    return MessageError(row)

class Rows:
    """Rows."""

    def __init__(self, rows):
        if rows is None:
            raise SchemaError("none")

    @property
    def first(self):
        raise StoreError("none")

    def check(self):
        raise CheckpointError("old")
'''


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise OptionError('no')", "OptionError"),
        ("raise errors.OptionError('no') from None", "OptionError"),
        ("check(row)", "OptionError"),
        ("return [check(one) for one in row]", "OptionError"),
        ("raise refused(row)", "MessageError"),
        ("Rows(row)", "SchemaError"),
        ("try:\n        check(row)\n    except KeyError:\n        pass", "OptionError"),
        ("try:\n        check(row)\n    except OptionError:\n        raise", "OptionError"),
        ("try:\n        row()\n    except OptionError as one:\n        raise FencedError() from one", "FencedError"),
        ("def inner():\n        raise StoreError('no')\n    inner()", "StoreError"),
    ],
)  # fmt: skip
def test_an_error_that_is_not_named_is_found(body, error):
    source = f'{HEAD}\n\ndef take(row):\n    """Take a row."""\n    {body}\n'
    assert [(name, raised) for _, name, raised in Module(source).unnamed() if name == "take"] == [("take", error)]
    named = source.replace("Take a row.", f"Take a row. Raises `{error}` if there is none.")
    assert [name for _, name, _ in Module(named).unnamed() if name == "take"] == []


@pytest.mark.parametrize("body", ["self.check()", "return self.first", "for one in (self.first,): pass"])
def test_an_error_of_a_method_or_a_property_is_found(body):
    source = f'{HEAD}\n    def take(self):\n        """Take a row."""\n        {body}\n'
    assert [name for _, name, _ in Module(source).unnamed() if name == "Rows.take"] == ["Rows.take"]


@pytest.mark.parametrize(
    "body",
    [
        "try:\n        check(row)\n    except OptionError:\n        return None",
        "try:\n        check(row)\n    except UsageError:\n        return None",
        "with suppress(OptionError):\n        check(row)",
        "raise StopIteration",
        "def inner():\n        raise StoreError('no')\n    return inner",
        "return lambda: check(row)",
    ],
)
def test_an_error_that_is_caught_or_raised_later_does_not_count(body):
    source = f'{HEAD}\n\ndef take(row):\n    """Take a row."""\n    {body}\n'
    assert [name for _, name, _ in Module(source).unnamed() if name == "take"] == []


def test_the_docstring_of_a_class_speaks_for_its_constructor():
    assert [name for _, name, _ in Module(HEAD).unnamed()] == ["Rows.__init__"]
    named = HEAD.replace('"""Rows."""', '"""Rows. Raises `SchemaError` if there are none."""')
    assert [name for _, name, _ in Module(named).unnamed()] == []
