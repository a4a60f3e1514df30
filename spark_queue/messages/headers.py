"""The bounds of a message's headers. Every store refuses a push beyond them.

A message whose payload and headers are at their limits fits into a document of MongoDB (16 MiB),
also after it has become a dead letter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

#: Most headers of a message; most bytes of UTF-8 of one, and of all: of names and values together.
HEADER_COUNT_LIMIT, HEADER_SIZE_LIMIT, HEADERS_SIZE_LIMIT = 1_000, 8 << 10, 32 << 10

#: The headers that this package adds do not count. They have this many bytes of their own.
OWN_SIZE_LIMIT = 8 << 10
_OWN_NAMES = frozenset({"x-error", "x-hop-count", "x-provenance", "x-replay", "x-replay-of"})
_OWN_PREFIX = "x-dl-"

#: Most characters of a name that a rule quotes.
_MAX_QUOTED = 80


def is_own(name: str) -> bool:
    """Return whether this package adds a header of that name."""
    return name in _OWN_NAMES or name.startswith(_OWN_PREFIX)


def size_of(name: str, value: str) -> int:
    """Return the bytes of a header. It may have half a surrogate pair, which is refused later."""
    return len(name.encode(errors="replace")) + len(value.encode(errors="replace"))


def broken_rule(headers: Mapping[str, str]) -> str | None:
    """Return the rule that these headers break, if any."""
    sizes = {name: size_of(name, value) for name, value in headers.items()}
    own = sum(size for name, size in sizes.items() if is_own(name))
    total, number = sum(sizes.values()), sum(not is_own(name) for name in sizes)
    for name, size in sizes.items():
        if "\0" in name:
            return f"the name of its header {name[:_MAX_QUOTED]!r} has the character NUL"
        if size > HEADER_SIZE_LIMIT:
            return f"its header {name[:_MAX_QUOTED]!r} has {size:,} bytes; the limit is {HEADER_SIZE_LIMIT:,}"
    if number > HEADER_COUNT_LIMIT:
        return _number_rule(number)
    if total > HEADERS_SIZE_LIMIT + min(own, OWN_SIZE_LIMIT):
        return _size_rule(total)
    return None


def _number_rule(number: int) -> str:
    return f"it has {number:,} headers; the limit is {HEADER_COUNT_LIMIT:,}"


def _size_rule(size: int) -> str:
    return f"its headers have {size:,} bytes; the limit is {HEADERS_SIZE_LIMIT:,}"


def row_sizes(column: pa.MapArray) -> pa.Array:
    """Return the bytes of the headers of each row, of a column that may be sliced."""
    sums = pc.cumulative_sum(_entry_sizes(column).cast(pa.int64()))
    ends = pa.concat_arrays([pa.array([0], pa.int64()), sums]).take(column.offsets)
    return pc.subtract(ends.slice(1), ends.slice(0, len(column)))


def _entry_sizes(column: pa.MapArray) -> pa.Array:
    return pc.add(pc.binary_length(column.keys), pc.fill_null(pc.binary_length(column.items), 0))


def find_unfit(column: pa.MapArray) -> dict[int, str]:
    """Return the rows whose headers break a rule, with the rule.

    Whole columns are checked first. Rows whose text is not UTF-8 may be left out.
    """
    if not len(column.items) or _are_few_and_small(column):
        return {}
    sizes, offsets = _entry_sizes(column), column.offsets
    numbers, totals = pc.subtract(offsets.slice(1), offsets.slice(0, len(column))), row_sizes(column)
    suspects = pc.or_(pc.greater(numbers, HEADER_COUNT_LIMIT), pc.greater(totals, HEADERS_SIZE_LIMIT))
    odd = pc.or_(pc.match_substring(column.keys, "\0"), pc.greater(sizes, HEADER_SIZE_LIMIT))
    rows = set(pc.indices_nonzero(pc.and_(suspects, column.is_valid())).to_pylist())
    if odd.true_count:
        starts = offsets.to_pylist()
        rows |= {bisect_right(starts, at) - 1 for at in pc.indices_nonzero(odd).to_pylist()} & set(range(len(column)))
    found: dict[int, str] = {}
    for row in sorted(rows):
        number, total = numbers[row].as_py(), totals[row].as_py()
        if number > 2 * HEADER_COUNT_LIMIT:  # many headers: they need not become Python objects
            found[row] = _number_rule(number)
        elif total > 2 * (HEADERS_SIZE_LIMIT + OWN_SIZE_LIMIT):
            found[row] = _size_rule(total)
        elif rule := _rule_of_row(column, row):
            found[row] = rule
    return found


def _are_few_and_small(column: pa.MapArray) -> bool:
    """Return whether all headers of a column together break no rule; much faster than a kernel."""
    names = column.keys
    if len(names) > HEADER_COUNT_LIMIT or names.nbytes + column.items.nbytes > HEADER_SIZE_LIMIT:
        return False
    data = names.buffers()[2]
    return data is None or (data.size <= HEADERS_SIZE_LIMIT and b"\0" not in data.to_pybytes())


def _rule_of_row(column: pa.MapArray, row: int) -> str | None:
    try:
        pairs = column.slice(row, 1).to_pylist()[0] or ()
    except UnicodeDecodeError:  # another rule reports it
        return None
    return broken_rule({name: value for name, value in pairs if value is not None})


def cut_headers(headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the first of these headers that fit beside those that this package adds, and these.

    Names that no store takes are left out.
    """
    kept: dict[str, str] = {}
    number = 0
    left, own_left = HEADERS_SIZE_LIMIT, OWN_SIZE_LIMIT - sum(size_of(*one) for one in own.items())
    for name, value in headers.items():
        size = size_of(name, value)
        if name in own or "\0" in name or size > HEADER_SIZE_LIMIT:
            continue
        if is_own(name):
            if size <= own_left:
                own_left -= size
                kept[name] = value
        elif size <= left and number < HEADER_COUNT_LIMIT:
            number += 1
            left -= size
            kept[name] = value
    return kept | dict(own)
