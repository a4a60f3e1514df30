"""The results of a benchmark as a table on the terminal, and as docs/benchmarks.md with its charts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from common import ROOT
from ways import CEILING, RAW, WHO

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"

#: Where in the page the generated part is.
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

HEAD = ("way", "messages/s", "of the bare driver", "of Spark's ceiling", "client CPU", "server CPU", "peak memory")


@dataclass(frozen=True)
class Results:
    """What was measured: facts of the run, and for each store the rounds, each with what every way took."""

    facts: dict[str, Any]
    rounds: dict[str, list[dict[str, dict[str, float]]]]

    def as_json(self) -> dict[str, Any]:
        return {**self.facts, "ratios": self.ratios(), "rounds of": self.rounds}

    def median(self, store: str, way: str, fact: str) -> float:
        return statistics.median(one[way][fact] for one in self.rounds[store])

    def ratio(self, store: str, way: str, other: str) -> float:
        """How fast one way is beside another: the median of the ratios within a round, which had the same weather."""
        return statistics.median(one[way]["rate"] / one[other]["rate"] for one in self.rounds[store])

    def ways(self, store: str) -> list[str]:
        return list(self.rounds[store][0])

    def ratios(self) -> dict[str, dict[str, float]]:
        """By store and way, how fast it is beside the bare driver."""
        return {
            store: {way: round(self.ratio(store, way, _same(way, RAW)), 3) for way in sorted(self.ways(store))}
            for store in self.rounds
        }


def _same(way: str, who: str) -> str:
    """What `who` does in the same place."""
    return f"{who}, {way.rpartition(', ')[2]}"


def rows(found: Results, store: str, what: str) -> list[tuple[str, ...]]:
    """The table of one store, for `push` or `drain`."""
    made: list[tuple[str, ...]] = []
    for who in WHO:
        way = f"{who}, {what}"
        fact = {name: found.median(store, way, name) for name in ("rate", "client", "server", "peak")}
        made.append((
            who, f"{fact['rate']:,.0f}",
            f"{found.ratio(store, way, _same(way, RAW)):.2f}", f"{found.ratio(store, way, _same(way, CEILING)):.2f}",
            f"{fact['client']:.1f} s", f"{fact['server']:.1f} s", f"{fact['peak'] / 2**20:,.0f} MB",
        ))  # fmt: skip
    return made


def as_text(found: Results) -> str:
    """The tables for a terminal."""
    lines = [found.facts["setup"]]
    for store in found.rounds:
        for what in ("push", "drain"):
            table = [(f"{store}: {what}", *HEAD[1:]), *rows(found, store, what)]
            widths = [max(len(row[column]) for row in table) for column in range(len(HEAD))]
            lines.append("")
            for row in table:
                cells = [
                    one.ljust(width) if at == 0 else one.rjust(width)
                    for at, (one, width) in enumerate(zip(row, widths, strict=True))
                ]
                lines.append("  ".join(cells))
    return "\n".join(lines)


def as_markdown(found: Results) -> str:
    """The generated part of the page."""
    facts = found.facts
    lines = [
        f"Measured on {facts['when']}: {facts['setup']}; {facts['messages']:,} messages, "
        f"medians of {facts['rounds']} rounds."
    ]
    for store in found.rounds:
        lines += ["", f"### {store}", "", f"![messages per second](pictures/bench_{store}.svg)"]
        for what in ("push", "drain"):
            lines += ["", f"| {what} | " + " | ".join(HEAD[1:]) + " |", "|---" * len(HEAD) + "|"]
            lines += ["| " + " | ".join(row) + " |" for row in rows(found, store, what)]
    return "\n".join(lines)


def renew(found: Results, text: str) -> None:
    """Write the generated part of the page, and its charts."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    for store in found.rounds:
        chart(found, store)


def chart(found: Results, store: str) -> None:
    """Bars of messages per second, pushed and drained."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "spark_queue"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 3.2), sharey=True)
    for ax, what in zip(axes, ("push", "drain"), strict=True):
        upwards = WHO[::-1]
        rates = [found.median(store, f"{who}, {what}", "rate") for who in upwards]
        ax.barh(upwards, rates, color=["#94a3b8" if who in (RAW, CEILING) else "#c2410c" for who in upwards])
        ax.set_xlabel(f"{what}: messages per second")
        ax.spines[["top", "right"]].set_visible(False)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    figure.tight_layout()
    figure.savefig(PICTURES / f"bench_{store}.svg", metadata={"Date": None})
    plt.close(figure)
