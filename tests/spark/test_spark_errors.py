"""What Spark fails with, in one line."""

from __future__ import annotations

import pytest

from spark_queue.errors import (
    CheckpointError,
    FencedError,
    MessageError,
    OptionError,
    SchemaError,
    StoreUnavailable,
)
from spark_queue.spark.output_modes import mode_error
from spark_queue.spark.spark_errors import Failure, failure_of

HEAD = "Traceback (most recent call last)"
TRACEBACK = f'{HEAD}:\n  File "x.py", line 1, in f\n    g()\n'
HERE = "(x.py, line 1, in f)"
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
        (
            STREAM.format("requirement failed: queue does not support Update mode."),
            Failure(str(mode_error("update")), OptionError),
        ),
        (
            STREAM.format("requirement failed: console does not support Update mode."),
            Failure("requirement failed: console does not support Update mode."),
        ),
        (
            f"[P] it is:\n{TRACEBACK}ValueError: no\n\n\tat x\nCaused by: a.B: c",
            Failure(f"[P] it is: ValueError: no {HERE}", python=f"ValueError: no {HERE}"),
        ),
        (
            f"Return Message: {TRACEBACK}KeyError: 1\n",
            Failure(f"Return Message: KeyError: 1 {HERE}", python=f"KeyError: 1 {HERE}"),
        ),
        (
            f"it is\n{TRACEBACK}py4j.protocol.Py4JJavaError: An error occurred while calling o1.x.\n: a.B: c\n\tat x",
            Failure(f"it is: a.B: c {HERE}", python=f"a.B: c {HERE}"),
        ),
        (
            f"it is\n{TRACEBACK}spark_queue.errors.MessageError: bad\n",
            Failure("bad", MessageError, f"spark_queue.errors.MessageError: bad {HERE}"),
        ),
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
    assert failure_of(error).permanent is lasting


class Caused(RuntimeError):
    """As PySpark hands on an exception of Java's that has a cause."""

    def __init__(self, text, cause):
        super().__init__(text)
        self._cause = cause


def test_the_cause_is_looked_for_in_all_exceptions():
    python = RuntimeError(f"An exception was thrown from the Python worker:\n{TRACEBACK}ValueError: of mine\n")
    error = Caused(STREAM.format("Writing job failed."), Caused("org.apache.spark.SparkException: Writing", python))
    mine = f"ValueError: of mine {HERE}"
    assert failure_of(error) == Failure(f"Writing job failed: {mine}", python=mine)
    ours = RuntimeError(f"{TRACEBACK}spark_queue.errors.StoreUnavailable: redis://h is away\n")
    raised = f"spark_queue.errors.StoreUnavailable: redis://h is away {HERE}"
    assert failure_of(Caused("x", Caused("y", ours))) == Failure("redis://h is away", StoreUnavailable, raised)
    assert failure_of(Caused("x", RuntimeError("org.x.Y: the end"))) == Failure("x: the end")
    assert failure_of(SchemaError("no column")) == Failure("no column", SchemaError)


USER, LIBRARY = "/home/u/jobs/clean.py", "/usr/lib/python3.11/json/decoder.py"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["/venv/lib/python3.11/site-packages/pyspark/worker.py", USER, LIBRARY], USER),
        ([USER, "/opt/spark/python/lib/pyspark.zip/pyspark/sql/utils.py"], USER),
        ([USER, "C:\\Python\\Lib\\json\\decoder.py", "<frozen importlib._bootstrap>"], USER),
        ([USER, "/databricks/spark/python/pyspark/util.py", "<string>"], "<string>"),
        (
            ["/home/u/pyspark-jobs/clean.py", "/opt/spark/py4j-0.10.9-src.zip/py4j/protocol.py"],
            "/home/u/pyspark-jobs/clean.py",
        ),
        (["/spark/pyspark/worker.py", LIBRARY], LIBRARY),
    ],
)
def test_the_line_is_one_of_the_users_own_code(files, found):
    frames = "".join(f'  File "{file}", line {n}, in f{n}\n    g()\n    ^^^\n' for n, file in enumerate(files))
    line = files.index(found)
    error = RuntimeError(f"it failed\n{HEAD}:\n{frames}ValueError: no fare\n\nand so on")
    assert failure_of(error).python == f"ValueError: no fare ({found}, line {line}, in f{line})"


def test_an_exception_without_frames_is_shown_alone():
    error = RuntimeError(f"it failed\n{HEAD}:\n  [hidden]\nValueError: no fare\n")
    assert failure_of(error).python == "ValueError: no fare"
