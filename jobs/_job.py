"""What the jobs share: their command line, their Spark session, clean stops, progress and exit codes.

It lies beside the jobs. Where they travel, it goes with them: `spark-submit --py-files jobs/_job.py jobs/push.py …`.
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
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

#: Whether spark-submit runs the job: then master, logging and interpreters are its business.
SUBMITTED = "PYSPARK_GATEWAY_PORT" in os.environ

if importlib.util.find_spec("spark_queue") is None and not SUBMITTED:  # not installed: this may be a checkout
    _root = str(Path(__file__).resolve().parents[1])
    sys.path.append(_root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _root]))  # for workers

try:
    from spark_queue.address import masked_in
    from spark_queue.errors import StoreError, UsageError, near
    from spark_queue.failure import failure_of
    from spark_queue.options import QueueOptions, Role, duration
    from spark_queue.store import open_store, usable
    from spark_queue.store.facts import Sizes
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

#: Seconds between two looks at a streaming query, at a batch query, and two lines of progress without a terminal.
TICK, BATCH_TICK, LINE = 1, 0.2, 5.0

#: Spark's logging: off, with the appender without which Spark takes its own default.
SILENT = """
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = off
"""

#: What Spark calls mistakes of the caller, among all that it calls by a name.
MISTAKES = {"PATH_NOT_FOUND", "PATH_ALREADY_EXISTS", "UNABLE_TO_INFER_SCHEMA"}


# --- the command line -----------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Arguments that every job takes; each adds its own. A mistake ends the program with exit code 2.

    `queue`: whether it works on one queue, which is then told by arguments.
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
            self._add_queue(self.add_argument_group("the queue"))
        run = self.add_argument_group("the run")
        run.add_argument("--json", action="store_true", help="print the summary as one JSON object on stdout")
        run.add_argument("--debug", action="store_true", help="show tracebacks and Spark's log")
        run.add_argument("--master", help="Spark's master, without spark-submit (default: local[*])")

    @staticmethod
    def _add_queue(group: argparse._ArgumentGroup) -> None:
        group.add_argument(
            "--url", required=True, help="its store: sqlite:///queues.db, mongodb://host/database, redis://host/0"
        )
        group.add_argument("--queue", required=True, metavar="Q", help="its name")
        group.add_argument(
            "--option",
            type=pair,
            action="append",
            default=[],
            metavar="K=V",
            help='any option of format("queue"); repeatable',
        )

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """The arguments, or the end of the program with a message."""
        self._words = sys.argv[1:] if argv is None else list(argv)
        args, odd = self.parse_known_args(self._words)
        if odd:
            self.error(f"unknown argument {odd[0]!r}{near(odd[0].partition('=')[0], self._option_string_actions)}")
        return args

    def error(self, message: str) -> NoReturn:
        """End the program with a message that quotes no password."""
        super().error(masked_in(message, self._words))


def pair(text: str) -> tuple[str, str]:
    """`key=value`."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def names(text: str) -> list[str]:
    """`one,two`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def lasting(text: str) -> int:
    """A duration, in ms."""
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be {error}") from None


def count(text: str) -> int:
    """A whole number that is not 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return int(text)


# --- the queue, seen before Spark starts ----------------------------------------------------------------------------


def checked(raw: Mapping[str, str], role: Role) -> tuple[dict[str, str], QueueOptions]:
    """Options of `format("queue")`, as texts and parsed; the URL holds wherever it is opened. Raises `UsageError`."""
    options = usable(QueueOptions.parse(raw, role))
    return {**raw, "url": options.url}, options


class Gauge:
    """The sizes of a queue, looked at as often as is cheap. To make one fails where the store is down.

    `staging`: look at what exactly-once writes have staged for it, too.
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
        """The sizes, perhaps of a moment ago; `now`: of this one. While the store is away they stay as they were."""
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
    """The sizes by name."""
    return {"ready": sizes.ready, "scheduled": sizes.scheduled, "reserved": sizes.reserved}


def told(sizes: Sizes) -> str:
    """`1,200 ready, 3 reserved`, or `nothing`."""
    return ", ".join(f"{number:,} {state}" for state, number in states(sizes).items() if number) or "nothing"


def plural(number: int, one: str, more: str | None = None) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


# --- progress and stops ---------------------------------------------------------------------------------------------


class Watch:
    """What the user sees of a run, one live line on a terminal; and what a run hears of the user: SIGINT, SIGTERM."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.signal: int | None = None
        self._said = time.monotonic()
        self._console: Any = None
        self._status: Any = None

    @property
    def stopped(self) -> bool:
        """Whether the user wants the run to end."""
        return self.signal is not None

    @property
    def name_of_signal(self) -> str | None:
        """What the user stopped the run with."""
        return None if self.signal is None else signal.Signals(self.signal).name

    @property
    def code(self) -> int:
        """The exit code of a run that was cut short."""
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
        """Take SIGINT and SIGTERM as the wish to stop. Spark's own start takes SIGINT away, so do it again then."""
        signal.signal(signal.SIGINT, self._hear)
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.stopped:  # the second time: at once
            os._exit(128 + number)
        self.signal = number

    def show(self, text: str) -> None:
        """The state of the run, in place of what was shown before."""
        if self._status is not None:
            from rich.markup import escape

            self._status.start()
            self._status.update(escape(text))
        elif time.monotonic() - self._said >= LINE:
            self.say(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._said = time.monotonic()
        if self._console is not None:
            self._console.print(f"{self.name}: {text}", markup=False, soft_wrap=True)
        else:
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """A result, on stdout."""
        if self._status is not None:
            self._status.stop()
        print(text, flush=True)


@dataclass
class Summary:
    """What a run did: a sentence for people, facts for programs, and the exit code."""

    text: str
    facts: dict[str, Any]
    code: int = 0


def run_batch(spark: SparkSession, action: Callable[[], None], watch: Watch, state: Callable[[], str]) -> bool:
    """Do a batch query and show its `state` meanwhile; give whether it came to its end, for the user may stop it."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(BATCH_TICK):
            watch.show("stopping" if watch.stopped else state())
            if watch.stopped:
                spark.sparkContext.cancelAllJobs()

    looking = threading.Thread(target=look, name="progress", daemon=True)
    looking.start()  # while the query stays in this thread: Spark finds data sources by the session active in it
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


# --- Spark ----------------------------------------------------------------------------------------------------------


def session(name: str, master: str | None = None, *, debug: bool = False) -> SparkSession:
    """The Spark session: that of spark-submit or of the caller, else a quiet one of the job's own on this machine."""
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise UsageError(f"{error}; install Spark with: pip install 'spark-queue[spark]'") from error
    builder = SparkSession.builder.appName(name)
    if SUBMITTED or SparkContext._active_spark_context is not None:
        return builder.getOrCreate()
    if not shutil.which(f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"):
        raise UsageError("Spark needs Java 17 or later: install it, or set JAVA_HOME to where it is")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run python3 otherwise
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf(loadDefaults=False).setMaster(master or "local[*]").setAppName(name)
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as logging:
        if not debug:  # what goes wrong comes back as an exception
            logging.write(SILENT)
            logging.flush()
            conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.name}")
        # A Ctrl-C at the terminal is for the job, which then stops Spark: hence a process group of its own for Spark.
        gateway = launch_gateway(conf, {"process_group": 0})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
        return builder.config(conf=conf).getOrCreate()


# --- from the command line to the exit code -------------------------------------------------------------------------


def run(
    parser: Parser,
    prepare: Callable[[argparse.Namespace], Plan],
    work: Callable[[SparkSession, Plan, Watch], Summary],
    argv: Sequence[str] | None = None,
) -> int:
    """The life of a job: `prepare` finds the user's mistakes before Spark starts, `work` does what is asked for."""
    args = parser.parse(argv)
    with Watch(parser.prog) as watch:
        try:
            plan = prepare(args)
            watch.show("starting Spark")
            spark = session(parser.prog, args.master, debug=args.debug)
            watch.listen()
            summary = work(spark, plan, watch)
            watch.show("stopping Spark")
            with suppress(
                Exception
            ):  # all is done; where spark-submit was stopped too, nobody is there to be stopped
                spark.stop()
        except KeyboardInterrupt:
            watch.say("stopped before anything was done")
            return 128 + signal.SIGINT
        except Exception as error:  # noqa: BLE001  the last gate: an exit code and a message of all that can happen
            text, code = diagnosis(error)
            if args.debug:
                traceback.print_exc()
            if watch.stopped:  # spark-submit passes a Ctrl-C to Spark too, which then ends before the job can stop it
                text, code = "stopped", watch.code
            watch.say(text)
            return code
        watch.say(summary.text)
        if args.json:
            watch.tell(json.dumps(summary.facts))
    return summary.code


def diagnosis(error: Exception) -> tuple[str, int]:
    """What to tell of an error, and the exit code: 2 for the user's mistake, 1 for a failure."""
    failure = failure_of(error)
    if failure.kind is None and "DATA_SOURCE_NOT_FOUND" in str(error):  # the job itself has imported it
        return "Spark's workers run a Python without spark_queue: set PYSPARK_PYTHON to one that has it", 2
    condition = getattr(error, "getCondition", lambda: None)()
    mistake = condition in MISTAKES or (failure.kind is not None and issubclass(failure.kind, UsageError))
    return failure.text, 2 if mistake else 1
