"""What made a job or a query of Spark's fail, out of all that Spark says about it.

Spark hands on an exception of a Python process as text, somewhere among its own: as a traceback or as its last line
alone (see `spark/sentence.py`), in the message, behind `Caused by`, or in the exception that is the cause of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spark_queue import errors
from spark_queue.errors import CheckpointError, QueueError, UsageError

_OURS = re.compile(r"(?:^(?:\w+: )?|: )spark_queue\.errors\.(\w+): (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_BEGINS = "Traceback (most recent call last)"
_TRACEBACK = re.compile(rf"{re.escape(_BEGINS)}:\n((?:[ \t].*\n)+)(?:py4j\.protocol\.Py4JJavaError: .*\n: )?(\S.*)")
_FRAME = re.compile(r'^ +File "(.+)", line (\d+), in (\S.*)$', re.MULTILINE)

#: Files of Python's own library and of installed packages: an error in one of them is one of the user's call.
_LIBRARY = re.compile(
    r"[/\\](lib(64)?[/\\]python3[.\d]*|Lib|site-packages|dist-packages|pyspark(\.zip)?|py4j)[/\\]|^<frozen "
)

_JAVA = re.compile(r"^Caused by: [\w.$]+: (.*)", re.MULTILINE)

#: What Spark puts around a message.
_AROUND = re.compile(
    r"\AAn error occurred while calling \S+\s+: [\w.$]+: |\A\[STREAM_FAILED\].*?terminated with exception: "
    r"|\A[a-z][\w.$]+\.[A-Z]\w*: | SQLSTATE: \w+$"
)


@dataclass(frozen=True)
class Failure:
    """What went wrong, in one line, and which of our errors it was, if it was one.

    `python`: the exception that Python raised at the bottom of it and the last line of the user's code that ran, as
    `ValueError: no fare (/jobs/clean.py, line 12, in parse)`.
    """

    text: str
    kind: type[QueueError] | None = None
    python: str | None = None

    @property
    def lasting(self) -> bool:
        """Whether it is sure to come again, however often the same is tried."""
        return self.kind is not None and issubclass(self.kind, UsageError | CheckpointError)


def failure_of(error: BaseException) -> Failure:
    """What an exception is about. Our own errors come first, then what Python or Java raised at the bottom of it."""
    if isinstance(error, QueueError):
        return Failure(str(error), type(error))
    said = [str(one) for one in _causes(error)]
    text = "\n".join(said)
    raised = _TRACEBACK.findall(text)
    python = _located(*raised[-1]) if raised else None
    if ours := _OURS.search(text):
        return Failure(ours[2].strip(), getattr(errors, ours[1], QueueError), python)
    first = _head(said[0]).removesuffix(f"{_BEGINS}:") or type(error).__name__
    last = python or (_JAVA.findall(text) or [_head(said[-1])])[-1]
    return Failure(first if last in first else f"{first.rstrip(' .:')}: {last}", python=python)


def _located(frames: str, raised: str) -> str:
    """Return an exception with the last line of the user's code in its traceback; of any code if there is none."""
    found = _FRAME.findall(frames)
    own = [frame for frame in found if not _LIBRARY.search(frame[0])] or found
    return raised if not own else "{} ({}, line {}, in {})".format(raised, *own[-1])


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and what it was raised from, here or in the JVM."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "_cause", None) or cause.__cause__


def _head(text: str) -> str:
    """The first line, without what Spark puts around it."""
    lines = (line.strip() for line in _AROUND.sub("", text, count=1).splitlines())
    return _AROUND.sub("", next(filter(None, lines), ""))
