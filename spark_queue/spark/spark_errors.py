"""Find the error that made a job or a query fail in the exceptions of Spark.

Spark passes on the exception of a Python process as text within its own messages: as a traceback,
or as its last line alone (see `tracebacks.py`). The text is in the message, behind `Caused by`, or
in the exception's cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spark_queue import errors
from spark_queue.errors import CheckpointError, QueueError, UsageError
from spark_queue.spark.output_modes import translate_mode_error

_QUEUE_ERROR = re.compile(r"(?:^(?:\w+: )?|: )spark_queue\.errors\.(\w+): (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_TRACEBACK_START = "Traceback (most recent call last)"
_TRACEBACK = re.compile(
    rf"{re.escape(_TRACEBACK_START)}:\n((?:[ \t].*\n)+)(?:py4j\.protocol\.Py4JJavaError: .*\n: )?(\S.*)"
)
_FRAME = re.compile(r'^ +File "(.+)", line (\d+), in (\S.*)$', re.MULTILINE)

#: Files of the standard library and of installed packages. An error there shows the user's call.
_LIBRARY_FILE = re.compile(
    r"[/\\](lib(64)?[/\\]python3[.\d]*|Lib|site-packages|dist-packages|pyspark(\.zip)?|py4j)[/\\]|^<frozen "
)

_JAVA_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)", re.MULTILINE)

#: The text that Spark adds to a message.
_SPARK_WRAPPING = re.compile(
    r"\AAn error occurred while calling \S+\s+: [\w.$]+: |\A\[STREAM_FAILED\].*?terminated with exception: "
    r"|\A[a-z][\w.$]+\.[A-Z]\w*: | SQLSTATE: \w+$"
)


@dataclass(frozen=True)
class Failure:
    """The error of a job or query: in one line (`text`), and its class (`kind`) if it is ours.

    `python`: the exception of the Python process, with the last line of the user's code that ran.
    Example: `ValueError: no fare (/jobs/clean.py, line 12, in parse)`.
    """

    text: str
    kind: type[QueueError] | None = None
    python: str | None = None

    @property
    def permanent(self) -> bool:
        """Whether every retry would fail in the same way."""
        return self.kind is not None and issubclass(self.kind, UsageError | CheckpointError)


def failure_of(error: BaseException) -> Failure:
    """Return the error behind an exception: one of ours, else the root cause in Python or Java."""
    if isinstance(error, QueueError):
        return Failure(str(error), type(error))
    texts = [str(one) for one in _causes(error)]
    text = "\n".join(texts)
    raised = _TRACEBACK.findall(text)
    python = _add_location(*raised[-1]) if raised else None
    if match := _QUEUE_ERROR.search(text):
        return Failure(match[2].strip(), getattr(errors, match[1], QueueError), python)
    if refused := translate_mode_error(text):
        return Failure(str(refused), type(refused))
    first = _first_line(texts[0]).removesuffix(f"{_TRACEBACK_START}:") or type(error).__name__
    last = python or (_JAVA_CAUSE.findall(text) or [_first_line(texts[-1])])[-1]
    return Failure(first if last in first else f"{first.rstrip(' .:')}: {last}", python=python)


def _add_location(frames: str, raised: str) -> str:
    """Return an exception with the last line of the user's code in its traceback, else any line."""
    found = _FRAME.findall(frames)
    own = [frame for frame in found if not _LIBRARY_FILE.search(frame[0])] or found
    return raised if not own else "{} ({}, line {}, in {})".format(raised, *own[-1])


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, in Python or in the JVM."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "_cause", None) or cause.__cause__


def _first_line(text: str) -> str:
    """Return the first line, without the text that Spark adds."""
    lines = (line.strip() for line in _SPARK_WRAPPING.sub("", text, count=1).splitlines())
    return _SPARK_WRAPPING.sub("", next(filter(None, lines), ""))
