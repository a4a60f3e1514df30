"""Shared parts of the jobs: command line, Spark session, clean stops, progress and exit codes.

With spark-submit, pass this file: `spark-submit --py-files jobs/_job.py jobs/push.py …`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

#: Whether spark-submit runs the job. It then sets master, logging and interpreters.
SUBMITTED = "PYSPARK_GATEWAY_PORT" in os.environ

if importlib.util.find_spec("spark_queue") is None and not SUBMITTED:  # run from a checkout
    _root = str(Path(__file__).resolve().parents[1])
    sys.path.append(_root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _root]))  # for workers

try:
    from spark_queue.errors import StoreError, UsageError, did_you_mean
    from spark_queue.errors import plural as plural
    from spark_queue.options.masking import mask_words
    from spark_queue.options.parsers import duration
    from spark_queue.options.push import PushOptions
    from spark_queue.options.roles import AnyOptions, ReadOptions, parse_options
    from spark_queue.spark.spark_errors import failure_of
    from spark_queue.stores import open_store, resolve_options
    from spark_queue.stores.types import Sizes
except ModuleNotFoundError as missing:
    _hint = ", or set PYTHONPATH to its checkout for spark-submit" if SUBMITTED else ""
    print(
        f"{Path(sys.argv[0]).name}: {missing}; install it with: pip install 'spark-queue[spark]'{_hint}",
        file=sys.stderr,
    )
    sys.exit(2)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Plan = TypeVar("Plan")

#: Seconds between checks of a streaming query, of a batch query, and lines without a terminal.
TICK, BATCH_TICK, LINE = 1, 0.2, 5.0

#: Logging of Spark: off. Without an appender, Spark would use its default configuration.
SILENT = """
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = off
"""

#: Error conditions of Spark that are mistakes of the caller.
MISTAKES = {"PATH_NOT_FOUND", "PATH_ALREADY_EXISTS", "UNABLE_TO_INFER_SCHEMA"}


# --- the command line -----------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Arguments of all jobs; each job adds its own. A mistake ends the program with exit code 2.

    `queue`: whether the job works on one queue, with the arguments --url and --queue.
    """

    def __init__(self, prog: str, description: str, epilog: str, *, queue: bool = True) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._words: list[str] = []
        if queue:
            self._add_queue(self.add_argument_group("queue"))
        run = self.add_argument_group("run")
        run.add_argument("--json", action="store_true", help="print the summary as one JSON object on stdout")
        run.add_argument("--debug", action="store_true", help="show tracebacks and Spark's log")
        run.add_argument("--master", help="Spark's master, without spark-submit (default: local[*])")

    @staticmethod
    def _add_queue(group: argparse._ArgumentGroup) -> None:
        group.add_argument(
            "--url", required=True, help="the store: sqlite:///queues.db, mongodb://host/database or redis://host/0"
        )
        group.add_argument("--queue", required=True, metavar="Q", help="the name of the queue")
        group.add_argument(
            "--option",
            type=pair,
            action="append",
            default=[],
            metavar="K=V",
            help='an option of format("queue"); repeatable',
        )

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse the arguments, or exit with a message."""
        self._words = sys.argv[1:] if argv is None else list(argv)
        args, unknown = self.parse_known_args(self._words)
        if unknown:
            hint = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unknown argument {unknown[0]!r}{hint}")
        return args

    def error(self, message: str) -> NoReturn:
        """Exit with a message that contains no password."""
        super().error(mask_words(message, self._words))


def pair(text: str) -> tuple[str, str]:
    """Parse `key=value`."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} must be key=value")
    return key, value


def names(text: str) -> list[str]:
    """Parse `one,two`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def duration_ms(text: str) -> int:
    """Parse a duration, and return it in ms."""
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {error}" + (f"; did you mean {text}s?" if text.isdecimal() else "")
        ) from None


def count(text: str) -> int:
    """Parse a whole number, 1 or more."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


# --- the queue, before Spark starts ---------------------------------------------------------------


@overload
def checked(raw: Mapping[str, str], role: Literal["stream", "snapshot"]) -> tuple[dict[str, str], ReadOptions]: ...
@overload
def checked(raw: Mapping[str, str], role: Literal["push"]) -> tuple[dict[str, str], PushOptions]: ...
def checked(raw: Mapping[str, str], role: Any) -> tuple[dict[str, str], AnyOptions]:
    """Return the options as text and parsed, with an absolute URL. Raises `UsageError`."""
    options: AnyOptions = resolve_options(parse_options(raw, role))
    return {**raw, "url": options.database.url}, options


class Gauge:
    """The sizes of a queue, cached for a second or for ten times the duration of a read.

    `staging`: also read the number of rows that exactly-once writes have staged. Raises
    `StoreUnavailable` if the store is down.
    """

    def __init__(self, url: str, queue: str, *, staging: bool = False) -> None:
        self.store = open_store(url)
        self.queue = queue
        self.first = self._last = self.store.sizes(queue)
        self.staged = 0
        self._staging = staging
        self._next = 0.0

    def __enter__(self) -> Gauge:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def sizes(self, *, now: bool = False) -> Sizes:
        """Return cached sizes, or with `now` current ones; the last ones if the store is down."""
        began = time.monotonic()
        if now or began > self._next:
            with suppress(StoreError):
                self._last = self.store.sizes(self.queue)
                if self._staging:
                    self.staged = sum(one.rows for one in self.store.staged() if one.queue == self.queue)
            ended = time.monotonic()
            self._next = ended + max(1.0, 10 * (ended - began))
        return self._last


def states(sizes: Sizes) -> dict[str, int]:
    """Return the sizes by state."""
    return {"ready": sizes.ready, "scheduled": sizes.scheduled, "reserved": sizes.reserved}


def describe(sizes: Sizes) -> str:
    """Return `1,200 ready, 3 reserved`, or `no messages`."""
    return ", ".join(f"{number:,} {state}" for state, number in states(sizes).items() if number) or "no messages"


# --- progress and stops ---------------------------------------------------------------------------


class Watch:
    """Shows progress, on a terminal as one live line, and handles SIGINT and SIGTERM."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.signal: int | None = None
        self._printed = time.monotonic()
        self._console: Any = None
        self._status: Any = None

    @property
    def stopped(self) -> bool:
        """Return whether a signal stopped the run."""
        return self.signal is not None

    @property
    def name_of_signal(self) -> str | None:
        """Return the name of the signal that stopped the run."""
        return None if self.signal is None else signal.Signals(self.signal).name

    @property
    def code(self) -> int:
        """Return the exit code of a run that was stopped."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Watch:
        if sys.stderr.isatty():
            with suppress(ImportError):
                from rich.console import Console

                self._console = Console(stderr=True, highlight=False)
                self._status = self._console.status("")
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def listen(self) -> None:
        """Handle SIGINT and SIGTERM. Call it again after Spark started: it replaces the handler."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.stopped:  # the second signal ends the job at once
            os._exit(128 + number)
        self.signal = number

    def show(self, text: str) -> None:
        """Show the state of the run, and replace the last one."""
        if self._status is not None:
            from rich.markup import escape

            self._status.start()
            self._status.update(escape(text))
        elif time.monotonic() - self._printed >= LINE:
            self.log(text)

    def log(self, text: str) -> None:
        """Print a line to stderr."""
        self._printed = time.monotonic()
        if self._console is not None:
            self._console.print(f"{self.name}: {text}", markup=False, soft_wrap=True)
        else:
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def print_result(self, text: str) -> None:
        """Print a result to stdout."""
        if self._status is not None:
            self._status.stop()
        print(text, flush=True)


@dataclass
class Summary:
    """The result of a run: text for the user, facts for programs, and the exit code."""

    text: str
    facts: dict[str, Any]
    code: int = 0


def run_batch(spark: SparkSession, action: Callable[[], None], watch: Watch, state: Callable[[], str]) -> bool:
    """Run a batch query and show its `state`. Return whether it ended without a stop."""
    done = threading.Event()

    def watch_query() -> None:
        while not done.wait(BATCH_TICK):
            watch.show("stopping" if watch.stopped else state())
            if watch.stopped:
                spark.sparkContext.cancelAllJobs()

    looking = threading.Thread(target=watch_query, name="progress", daemon=True)
    # The query stays in this thread: Spark finds data sources by the active session of a thread.
    looking.start()
    try:
        action()
    except Exception:
        if watch.stopped:
            return False
        raise
    finally:
        done.set()
        looking.join()
    return True


# --- Spark ----------------------------------------------------------------------------------------


def session(name: str, master: str | None = None, *, debug: bool = False) -> SparkSession:
    """Return the session of the caller, or a new one without logs. Raises `UsageError`."""
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        from spark_queue.spark import register
        from spark_queue.spark.checkpoints import checkpoint_conf
    except ModuleNotFoundError as error:
        raise UsageError(f"{error}; install Spark with: pip install 'spark-queue[spark]'") from error
    builder = SparkSession.builder.appName(name)
    if SUBMITTED or SparkContext._active_spark_context is not None:
        register(spark := builder.getOrCreate())
        return spark
    if not shutil.which(f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"):
        raise UsageError("Spark needs Java 17 or later: install it, or set JAVA_HOME to its folder")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run python3 otherwise
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    master = master or "local[*]"
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    if master.startswith("local"):
        conf.setAll(list(checkpoint_conf().items()))
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as logging:
        if not debug:  # errors are raised as exceptions
            logging.write(SILENT)
            logging.flush()
            conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.name}")
        # Spark gets its own process group: Ctrl-C is for the job, which then stops Spark.
        gateway = launch_gateway(conf, {"process_group": 0})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
        register(spark := builder.config(conf=conf).getOrCreate())
        return spark


# --- from the command line to the exit code -------------------------------------------------------


def run(
    parser: Parser,
    prepare: Callable[[argparse.Namespace], Plan],
    work: Callable[[SparkSession, Plan, Watch], Summary],
    argv: Sequence[str] | None = None,
) -> int:
    """Run a job. `prepare` checks the call before Spark starts, `work` does the work."""
    args = parser.parse(argv)
    with Watch(parser.prog) as watch:
        try:
            plan = prepare(args)
            watch.show("starting Spark")
            spark = session(parser.prog, args.master, debug=args.debug)
            watch.listen()
            summary = work(spark, plan, watch)
            watch.show("stopping Spark")
            with suppress(Exception):  # the work is done; a signal may have ended Spark, too
                spark.stop()
        except KeyboardInterrupt:
            watch.log("stopped; nothing was done")
            return 128 + signal.SIGINT
        except Exception as error:  # noqa: BLE001  any error ends with a message and an exit code
            text, code = diagnosis(error)
            if args.debug:
                traceback.print_exc()
            if watch.stopped:  # spark-submit also passes Ctrl-C to Spark, which may end first
                text, code = "stopped", watch.code
            watch.log(text)
            return code
        watch.log(summary.text)
        if args.json:
            watch.print_result(json.dumps(summary.facts))
    return summary.code


def diagnosis(error: Exception) -> tuple[str, int]:
    """Return the message for an error, and the exit code: 2 for a wrong call, 1 for a failure."""
    failure = failure_of(error)
    if failure.kind is None and "DATA_SOURCE_NOT_FOUND" in str(error):  # the driver has spark_queue
        return "Spark's workers run a Python without spark_queue; set PYSPARK_PYTHON to one that has it", 2
    condition = getattr(error, "getCondition", lambda: None)()
    mistake = condition in MISTAKES or (failure.kind is not None and issubclass(failure.kind, UsageError))
    return failure.text, 2 if mistake else 1
