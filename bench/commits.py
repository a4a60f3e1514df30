"""Measure two versions of the code in turn: a copy and a process of bench/side.py for each."""

from __future__ import annotations

import io
import json
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, say, turns
from side import MOVE, STEP

#: The packages that are measured.
PACKAGES = ("spark_queue", "pyspark_queue")
#: The programs that measure them. `tests` has the addresses of the servers.
PROGRAMS = ("bench", "tests")
PARENT, NEW = SIDES = ("parent", "new")
#: Seconds that Spark may take to start, or a way to end. After that the side counts as hung.
ANSWER_TIMEOUT_S = 600

#: Ways that warm up a process: its JVM, its imports, and Spark's workers.
WARM_UP = (
    "Spark, 2 partitions, exactly-once, push",
    "Spark, 2 partitions, exactly-once, drain",
    f"{MOVE}, exactly-once",
)


class SideError(Exception):
    """A commit could not be copied, or a side could not be started or measured."""


class TooNewError(SideError):
    """The benchmarks use names that the code of a side does not have."""


@dataclass(frozen=True)
class Version:
    """A copy of one version: packages in `code`, benchmarks in `programs`, and a `title`."""

    title: str
    code: Path
    programs: Path

    @property
    def bench(self) -> Path:
        return self.programs / "bench"


def git(*words: str) -> bytes:
    """Run git in this checkout and return its output. Raises `SideError` if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        raise SideError(f"git {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def title_of(ref: str) -> str:
    """Return short hash, date and subject of a commit. Raises `SideError` if there is none."""
    try:
        return (
            git("log", "-1", "--format=%h of %cs: %s", "--end-of-options", f"{ref}^{{commit}}", "--").decode().strip()
        )
    except SideError:
        raise SideError(f"there is no commit {ref!r} in {ROOT}") from None


def commit_of(ref: str, folder: Path) -> Version:
    """Copy a commit out of the repository."""
    title = title_of(ref)
    commit = title.split()[0]
    made = Version(title, folder / "code", folder / "programs")
    for names, target in ((PACKAGES, made.code), (PROGRAMS, made.programs)):
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *names))) as archive:
            archive.extractall(target, filter="data")
    return made


def this_checkout(folder: Path) -> Version:
    """Copy the current files of this checkout, so that you can edit them during the measurement."""
    changed = " and uncommitted changes" if git("status", "--porcelain", "--", *PACKAGES) else ""
    made = Version(title_of("HEAD") + changed, folder / "code", folder / "programs")
    unwanted = shutil.ignore_patterns("__pycache__", "node_modules")
    for names, target in ((PACKAGES, made.code), (PROGRAMS, made.programs)):
        for name in names:
            shutil.copytree(ROOT / name, target / name, ignore=unwanted)
    return made


class Side:
    """A running process of bench/side.py."""

    def __init__(self, name: str, version: Version, bench: Path, program: Path, folder: Path) -> None:
        self.name, self.folder = name, folder
        folder.mkdir()
        command = [sys.executable, str(program), str(version.code), str(bench), str(folder)]
        # Spark's workers search the current folder first. A session of its own, because Ctrl-C is
        # for the gate, which ends its sides.
        self._process = subprocess.Popen(
            command,
            cwd=version.code,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            hello = self._answer()
        except BaseException:
            self.close()
            raise
        self.ways: list[str] = hello["ways"]
        self.imported: dict[str, str] = hello["imported"]

    def rate(self, store: str, url: str, way: str, messages: int) -> float:
        """Return the messages per second of this side."""
        assert self._process.stdin is not None
        request = {"store": store, "url": url, "way": way, "messages": messages}
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._ended() from None
        return float(self._answer()["rate"])

    def close(self) -> None:
        """Close the input of the process, which then stops Spark and exits."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        for number in (signal.SIGINT, signal.SIGKILL):
            try:
                self._process.wait(30)
                break
            except subprocess.TimeoutExpired:
                self._process.send_signal(number)
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
            raise SideError(f"{self.name}: no answer within {ANSWER_TIMEOUT_S} s")
        if not (line := self._process.stdout.readline()):
            raise self._ended()
        found: dict[str, Any] = json.loads(line)
        if "lacks" in found:
            raise TooNewError(f"{self.name}: {found['lacks']}")
        return found

    def _ended(self) -> SideError:
        return SideError(f"{self.name}: the process ended with exit code {self._process.wait()}; see above")


@dataclass(frozen=True)
class Plan:
    """Stores and ways to measure.

    `urls` by store, names of `ways`, and `messages` per way (bench/ways.py scales them).
    """

    urls: Mapping[str, str]
    ways: Sequence[str]
    messages: int
    rounds: int


@dataclass
class Round:
    """One round, by side: `rates` by store and way, and the imports of each process."""

    rates: dict[str, dict[str, dict[str, float]]]
    imported: dict[str, dict[str, str]]


def rates(rounds: Sequence[Round], side: str) -> dict[str, dict[str, list[float]]]:
    """Return the rates of one side in all rounds, by store and way."""
    first = rounds[0].rates[side]
    return {store: {way: [one.rates[side][store][way] for one in rounds] for way in first[store]} for store in first}


def measure(parent: Version, new: Version, plan: Plan, folder: Path) -> list[Round]:
    """Measure both versions in turn.

    The new benchmarks measure both. If the parent lacks names that they use, its own do.
    Raises `SideError`.
    """
    versions = {PARENT: parent, NEW: new}
    choices = {
        "the new commit's": {PARENT: new.bench, NEW: new.bench},
        "the parent's, for both sides": {PARENT: parent.bench, NEW: parent.bench},
        "each side's own, which may differ": {PARENT: parent.bench, NEW: new.bench},
    }
    for title, benches in choices.items():
        say(f"benchmarks: {title}")
        try:
            rounds = [_round(1, versions, benches, plan, folder)]
            break
        except TooNewError as exc:
            say(f"{exc}\nbenchmarks: {title}: the code of one side lacks a name that they use")
    else:
        raise SideError("no benchmarks fit both sides; compare with a later commit")
    for number in range(2, plan.rounds + 1):
        rounds.append(_round(number, versions, benches, plan, folder))
    return rounds


def _round(
    number: int, versions: Mapping[str, Version], benches: Mapping[str, Path], plan: Plan, folder: Path
) -> Round:
    """Measure each way of each store on both sides, one right after the other.

    Each round starts new processes, because the code that a JVM has compiled stays fast or slow.
    """
    program = versions[NEW].bench / "side.py"
    found = Round({name: {} for name in versions}, {})
    with tempfile.TemporaryDirectory(dir=folder) as place, ExitStack() as stack:
        sides = []
        for name, version in versions.items():
            say(f"round {number} {name:6} starts: {version.title}")
            side = Side(name, version, benches[name], program, Path(place) / name)
            stack.callback(side.close)
            (code,) = set(side.imported.values())
            say(f"    imported by {', '.join(side.imported)}: {code}")
            found.imported[name] = side.imported
            sides.append(side)
        ways = [one for one in plan.ways if all(one in side.ways for side in sides)]
        if lost := [one for one in plan.ways if one not in ways]:
            say(f"the benchmarks of one side do not have: {'; '.join(lost)}")
        for store, url in plan.urls.items():
            urls = [f"sqlite:///{side.folder}/queues.db" if store == "sqlite" else url for side in sides]
            turn = list(zip(sides, urls, strict=True))
            for name in versions:
                found.rates[name][store] = dict.fromkeys(ways, 0.0)  # keeps the order of the plan
            for side, own in turn:
                for way in ways:
                    if way in WARM_UP:
                        side.rate(store, own, way, STEP)
            for at, way in enumerate(turns(ways, number)):
                # The sides take turns in going first.
                for side, own in turn if (number + at) % 2 else turn[::-1]:
                    rate = side.rate(store, own, way, plan.messages)
                    found.rates[side.name][store][way] = rate
                    say(f"round {number} {side.name:6} {store:8} {way:42} {rate:12,.0f}/s")
    return found
