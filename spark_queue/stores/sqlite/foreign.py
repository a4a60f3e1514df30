"""Whether a SQLite file belongs to another program: then it is refused, and stays as it is.

`user_version` alone does not say so: other programs number their files, too. A file of ours has the
tables of its version, with all their columns. It may have more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache

#: The columns of all tables.
_COLUMNS = """
SELECT one.name, field.name FROM sqlite_schema AS one, pragma_table_info(one.name) AS field WHERE one.type = 'table'
"""


def is_foreign(file: sqlite3.Connection, schema: Sequence[str]) -> bool:
    """Return whether a file belongs to another program. Changes nothing.

    `schema`: the SQL of each version, up to that of the file. Without any, the file must be empty.
    """
    if not schema:
        return file.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None
    return not _expected_columns(tuple(schema)) <= set(file.execute(_COLUMNS))


@cache
def _expected_columns(schema: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return the columns of a file that this SQL has created, by table."""
    model = sqlite3.connect(":memory:")
    try:
        for step in schema:
            model.executescript(step)
        return set(model.execute(_COLUMNS))
    finally:
        model.close()
