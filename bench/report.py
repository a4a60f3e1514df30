"""Write the results of bench/run.py as tables to the terminal and to docs/benchmarks.md."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT
from ways import BESIDE_PEERS, CEILING, DEFAULT_DRAIN, DRAIN, LARGE_CEILING, PUSH, RAW, WHO, ceiling_of

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"

CPU = ("client CPU (s)", "server CPU (s)")
PEAK = "peak memory (MB)"
HEAD = ("messages/s", "of the bare driver", "of Spark's ceiling", *CPU, PEAK)

#: Further columns of drains: the same with default options, and that relative to the tuned drain.
DEFAULT_HEAD = ("default options", "default, of tuned")
PEERS_HEAD = (
    "jobs", "pushed/s", *CPU, "drained/s", *CPU, PEAK, *(f"times as fast: Spark, {one}" for one in BESIDE_PEERS)
)  # fmt: skip

Table = list[tuple[str, ...]]


@dataclass(frozen=True)
class Results:
    """The results of a run.

    `facts` describe the run. `rounds` has, for each store and round, the measurement of each way,
    peers included. `peers` has `version`, `settings` and `jobs` of each peer of a store. `failed`
    has the errors of peers.
    """

    facts: dict[str, Any]
    rounds: dict[str, list[dict[str, dict[str, float]]]]
    peers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        peers = {
            store: {name: peer | {"times as fast": self.times(store, name)} for name, peer in of_store.items()}
            for store, of_store in self.peers.items()
        }
        found = {"ratios": self.ratios(), "peers": peers, "failed": self.failed, "rounds of": self.rounds}
        return {**self.facts, **found}

    def median(self, store: str, way: str, fact: str) -> float:
        return statistics.median(one[way][fact] for one in self.rounds[store])

    def ratio(self, store: str, way: str, other: str) -> float:
        """Return the rate of one way relative to another: the median ratio within a round."""
        return statistics.median(one[way]["rate"] / one[other]["rate"] for one in self.rounds[store])

    def times(self, store: str, peer: str) -> dict[str, float]:
        """Return, by layout, the rate at which Spark drains a queue relative to this peer."""
        drain = f"{peer}, {DRAIN}"
        return {layout: round(self.ratio(store, f"{who}, {DRAIN}", drain), 1) for layout, who in BESIDE_PEERS.items()}

    def who(self, store: str) -> list[str]:
        """Return the names of all measured ways, without peers."""
        return [one for one in WHO if f"{one}, push" in self.rounds[store][0]]

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return the rate of each of our ways relative to the bare driver, by store."""
        return {
            store: {
                f"{who}, {what}": round(self.ratio(store, f"{who}, {what}", f"{RAW}, {of}"), 3)
                for who in self.who(store)
                if who not in (RAW, CEILING, LARGE_CEILING)
                for what, of in ((PUSH, PUSH), (DRAIN, DRAIN), (DEFAULT_DRAIN, DRAIN))
                if f"{who}, {what}" in self.rounds[store][0]
            }
            for store in self.rounds
        }


def rows(found: Results, store: str, what: str) -> Table:
    """Return the table of one store for PUSH or DRAIN."""
    made: Table = [(what, *HEAD, *(DEFAULT_HEAD if what == DRAIN else ()))]
    for who in found.who(store):
        way = f"{who}, {what}"
        of = [found.ratio(store, way, f"{other}, {what}") for other in (RAW, ceiling_of(who))]
        row = (who, _rate(found, store, way), *(f"{one:.2f}" for one in of), *_costs(found, store, way))
        made.append((*row, *_by_default(found, store, who)) if what == DRAIN else row)
    return made


def _by_default(found: Results, store: str, who: str) -> tuple[str, str]:
    """Return the cells of DEFAULT_HEAD, empty for a way without micro-batches."""
    way = f"{who}, {DEFAULT_DRAIN}"
    if way not in found.rounds[store][0]:
        return "", ""
    return _rate(found, store, way), f"{found.ratio(store, way, f'{who}, {DRAIN}'):.2f}"


def peer_rows(found: Results, store: str) -> Table:
    """Return the table of the peers on one store."""
    made: Table = [("peer", *PEERS_HEAD)]
    for name, peer in found.peers[store].items():
        *costs, _ = _costs(found, store, f"{name}, {PUSH}")
        times = [f"{one:,.1f}" for one in found.times(store, name).values()]
        made.append((
            name, f"{peer['jobs']:,}", _rate(found, store, f"{name}, {PUSH}"), *costs,
            _rate(found, store, f"{name}, {DRAIN}"), *_costs(found, store, f"{name}, {DRAIN}"), *times,
        ))  # fmt: skip
    return made


def _rate(found: Results, store: str, way: str) -> str:
    return f"{found.median(store, way, 'rate'):,.0f}"


def _costs(found: Results, store: str, way: str) -> list[str]:
    """Return CPU seconds of client and server per million messages, and peak memory in MB."""
    client, server, peak = (found.median(store, way, fact) for fact in ("client", "server", "peak"))
    return [f"{client:,.1f}", f"{server:,.1f}", f"{peak / 2**20:,.0f}"]


def _tables(found: Results, store: str) -> list[Table]:
    tables = [rows(found, store, what) for what in (PUSH, DRAIN)]
    return [*tables, peer_rows(found, store)] if found.peers.get(store) else tables


def _notes(found: Results) -> list[str]:
    """Return the settings of the peers, each text once, and the errors of those that failed."""
    names: dict[str, list[str]] = {}
    for of_store in found.peers.values():
        for name, peer in of_store.items():
            names.setdefault(f"{peer['version']}; {peer['settings']}", []).append(name)
    settings = [f"{', '.join(of)}: {text}" for text, of in names.items()]
    return [*settings, *(f"{name} was not measured: {why.splitlines()[0]}" for name, why in found.failed.items())]


def as_text(found: Results) -> str:
    """Return the tables for a terminal."""
    lines = [found.facts["setup"]]
    for store in found.rounds:
        for table in _tables(found, store):
            (first, *head), *rest = table
            lines += ["", *aligned([(f"{store}: {first}", *head), *rest])]
    return "\n".join([*lines, *_notes(found)])


def as_markdown(found: Results) -> str:
    """Return the generated part of the page."""
    facts = found.facts
    lines = [
        f"Measured on {facts['when']}: {facts['setup']}; {facts['messages']:,} messages, "
        f"medians of {facts['rounds']} rounds."
    ]
    for store in found.rounds:
        lines += ["", f"### {store}", "", f"![messages per second](pictures/bench_{store}.svg)"]
        if found.peers.get(store):
            lines += ["", f"![messages per second of peers](pictures/bench_{store}_peers.svg)"]
        for table in _tables(found, store):
            lines += ["", *piped(table)]
    if notes := _notes(found):
        lines += ["", "### Settings of peers", "", *(f"* {one}" for one in notes)]
    return "\n".join(lines)


def aligned(table: Table) -> list[str]:
    """Return the lines of a table for a terminal. Its first row is the header."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            one.rjust(width) if at else one.ljust(width)
            for at, (one, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


def piped(table: Table) -> list[str]:
    """Return the lines of a table for Markdown."""
    head, *rest = ("| " + " | ".join(row) + " |" for row in table)
    return [head, "|---" * len(table[0]) + "|", *rest]


def part(name: str, page: Path = PAGE) -> str:
    """Return a generated part of the page: the text between the markers of its name."""
    return _parts(name, page)[1].strip()


def renew(name: str, text: str, page: Path = PAGE) -> None:
    """Replace a generated part of the page: the text between the markers of its name."""
    before, _, after = _parts(name, page)
    page.write_text(f"{before}\n{text}\n{after}")


def _parts(name: str, page: Path) -> tuple[str, str, str]:
    """Return the text before a part, the part, and the text after it, with the markers outside."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text().partition(begin)
    text, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{page} has no markers for this part; add {begin} and {end}")
    return before + begin, text, end + after
