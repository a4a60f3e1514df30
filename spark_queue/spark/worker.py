"""What is good for Spark's Python workers that make many Python objects."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle_in() -> None:
    """Let the collector of garbage pass over what has been imported by now; once in a process.

    Whoever makes thousands of objects that live on for a while has it look through all there are, again and again:
    with what pyspark and pyarrow import that is a third of the time of a row. See `gc.freeze`.
    """
    gc.collect()
    gc.freeze()
