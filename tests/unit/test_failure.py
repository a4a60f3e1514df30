"""What Spark fails with, in one line."""

from __future__ import annotations

import pytest

from spark_queue.errors import CheckpointError, FencedError, MessageError, SchemaError, StoreUnavailable
from spark_queue.failure import Failure, failure_of

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n'
STREAM = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {} SQLSTATE: XXKST\n=== Streaming Query"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "…\nTraceback …\nspark_queue.errors.SchemaError: no column 'x'\n\n\tat org.apache…",
            Failure("no column 'x'", SchemaError),
        ),
        (
            STREAM.format("[PYTHON_X] Failed when it did: spark_queue.errors.CheckpointError: of another queue\n"),
            Failure("of another queue", CheckpointError),
        ),
        (
            "[PYTHON_X] Failed to do it: spark_queue.errors.SchemaError: no column 'x' SQLSTATE: 38000",
            Failure("no column 'x'", SchemaError),
        ),
        ("job aborted\nspark_queue.errors.MessageError: row 'a': bad", Failure("row 'a': bad", MessageError)),
        ("\n[FAILED] it did\n\tat x\nCaused by: a.B: first\nCaused by: a.C$D: c", Failure("[FAILED] it did: c")),
        ("An error occurred while calling o7.save.\n: org.x.Y: [A] why\n\tat x", Failure("[A] why")),
        (STREAM.format("Writing job failed."), Failure("Writing job failed.")),
        (f"[P] it is:\n{TRACEBACK}ValueError: no\n\n\tat x\nCaused by: a.B: c", Failure("[P] it is: ValueError: no")),
        ("", Failure("RuntimeError")),
    ],
)  # fmt: skip
def test_what_is_told_of_a_text(text, told):
    assert failure_of(RuntimeError(text)) == told


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (CheckpointError("x"), True),
        (RuntimeError("spark_queue.errors.OptionError: x"), True),
        (StoreUnavailable("x"), False),
        (FencedError("x"), False),
        (MessageError("x"), False),
        (RuntimeError("x"), False),
    ],
)
def test_what_comes_again_however_often_it_is_tried(error, lasting):
    assert failure_of(error).lasting is lasting


class Caused(RuntimeError):
    """As PySpark hands on an exception of Java's that has a cause."""

    def __init__(self, text, cause):
        super().__init__(text)
        self._cause = cause


def test_the_cause_is_looked_for_in_all_exceptions():
    python = RuntimeError(f"An exception was thrown from the Python worker:\n{TRACEBACK}ValueError: of mine\n")
    error = Caused(STREAM.format("Writing job failed."), Caused("org.apache.spark.SparkException: Writing", python))
    assert failure_of(error) == Failure("Writing job failed: ValueError: of mine")
    ours = RuntimeError(f"{TRACEBACK}spark_queue.errors.StoreUnavailable: redis://h is away\n")
    assert failure_of(Caused("x", Caused("y", ours))) == Failure("redis://h is away", StoreUnavailable)
    assert failure_of(Caused("x", RuntimeError("org.x.Y: the end"))) == Failure("x: the end")
    assert failure_of(SchemaError("no column")) == Failure("no column", SchemaError)
