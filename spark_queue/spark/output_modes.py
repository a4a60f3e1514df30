"""Say what to do instead of an output mode in which Spark cannot write to a queue.

A queue takes rows and changes none that it has. A Python sink learns of the mode `complete` only
when the first batch begins. Spark refuses `update` itself, with its own text.
"""

from __future__ import annotations

import re

from spark_queue.errors import OptionError

#: Spark's error for the mode `update`. The name is that of the format.
_UPDATE_ERROR = re.compile(r"requirement failed: queue does not support Update mode")


def mode_error(mode: str) -> OptionError:
    """Return the error for the output mode `complete` or `update`."""
    return OptionError(
        f"a queue cannot be written with outputMode('{mode}'), since it changes no messages that it has: use "
        f"outputMode('{mode}') with foreachBatch, whose function writes each result as new messages: "
        "rows.write.format('queue').mode('append').options(url=…, queue=…, txnAppId='NAME', txnVersion=batch).save()",
        option="outputMode",
    )


def translate_mode_error(text: str) -> OptionError | None:
    """Return our error for Spark's own error about a mode, `None` for other errors."""
    return mode_error("update") if _UPDATE_ERROR.search(text) else None
