"""Draw the charts of docs/benchmarks.md from the tables of that page.

    python bench/charts.py        draw all charts again, without a measurement

`--docs` of bench/run.py and bench/growth.py updates the tables, then draws the charts. The
description of a chart contains its numbers, so a test finds a chart that is older than its table.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from report import PAGE, PICTURES, Table, part
from ways import BESIDE_PEERS, BUCKETS_SCALE, CEILING, LARGE_CEILING, RAW, SCALES, TRIGGER

#: Colors of the bars of spark_queue, and of all others.
OURS, THEIRS = "#c2410c", "#94a3b8"

#: Color and marker for the line of each operation. The colors suit color-blind readers.
LINES = {
    "reserve one": ("#0072b2", "o"),
    "first reserve": ("#e00000", "P"),
    "reserve a hundred": ("#d55e00", "s"),
    "reserve": ("#d55e00", "s"),
    "fetch": ("#009e73", "^"),
    "commit": ("#cc79a7", "D"),
    "push": ("#e69f00", "v"),
    "drain": ("#56b4e9", "X"),
    "sizes": ("#000000", "*"),
}

#: Names of the databases in titles.
NAMES = {"sqlite": "SQLite", "redis": "Redis", "mongodb": "MongoDB"}

#: End of the name of an operation whose times are in milliseconds.
MS = " (ms)"

#: Width of a chart in inches. At 800 pixels on a page, fonts have their nominal size.
WIDE = 8.33


@dataclass(frozen=True)
class Bars:
    """Rates by name, in messages per second, from top to bottom. `ours`: names of spark_queue."""

    title: str
    rates: dict[str, float]
    ours: frozenset[str]


def short(number: float) -> str:
    """Return a number with three digits: `97`, `9,456`, `119k`, `1.90M`."""
    if number >= 999_500:
        return f"{number / 1e6:.3g}M"
    return f"{number / 1e3:,.0f}k" if number >= 10_000 else f"{number:,.3g}" if number < 1_000 else f"{number:,.0f}"


# --- tables of the page ---------------------------------------------------------------------------


def tables(text: str) -> list[Table]:
    """Return the tables of a Markdown text. The first row of each is its header."""
    found: list[Table] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|-]+", line):
            if not before.startswith("|"):
                found.append([])
            found[-1].append(tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
        before = line
    return found


def rates(table: Table, column: str) -> dict[str, float]:
    """Return a column of rates by the text of the first column, without rows that have none."""
    at = table[0].index(column)
    return {row[0]: float(row[at].replace(",", "")) for row in table[1:] if row[at]}


def stores(page: Path = PAGE) -> dict[str, list[Table]]:
    """Return the tables of each store: push, drain and, if it has any, peers."""
    _, *sections = re.split(r"^### (\w+)$", part("measured", page), flags=re.M)
    return {store: tables(text) for store, text in zip(sections[::2], sections[1::2], strict=True)}


def measured_on(page: Path = PAGE) -> str:
    """Return the line with date and setup of the measurement."""
    return next(line for line in part("measured", page).splitlines() if line.startswith("Measured on "))


# --- bars -----------------------------------------------------------------------------------------


def panels(store: str, push: Table, drain: Table) -> list[Bars]:
    """Return the two panels of the chart of a store: push and drain."""
    found = []
    for word, table in (("push", push), ("drain", drain)):
        of = rates(table, "messages/s")
        found.append(Bars(f"{NAMES[store]}: {word}", of, frozenset(of) - {RAW, CEILING, LARGE_CEILING}))
    return found


def beside_peers(store: str, drain: Table, peers: Table) -> Bars:
    """Return the bars of the chart of peers: the drain rate of each, fastest first."""
    ours = rates(drain, "messages/s")
    found = {f"spark_queue, {layout}": ours[who] for layout, who in BESIDE_PEERS.items()}
    named = frozenset(found)
    found |= {f"bare {NAMES[store]} driver": ours[RAW]} | rates(peers, "drained/s")
    title = f"Draining a queue on {NAMES[store]}"
    return Bars(title, dict(sorted(found.items(), key=lambda one: -one[1])), named)


def conditions(store: str, peers: Table, page: Path = PAGE) -> str:
    """Return the note below the chart of peers: how they were measured."""
    at = peers[0].index("jobs")
    jobs = " or ".join(sorted({row[at] for row in peers[1:]}, key=len))
    return (
        f"{measured_on(page)} Server and clients on the same machine. "
        f"Peers: {jobs} jobs of 100 bytes that do nothing, each peer set up as its documentation advises for many "
        "short jobs. spark_queue, tuned: a streaming query into a sink that does nothing, in micro-batches of "
        f"{TRIGGER * SCALES[store]:,} messages (in buckets: {TRIGGER * BUCKETS_SCALE:,}); with "
        "default options, batches find their size."
    )


def draw_bars(shown: Sequence[Bars], note: str = "") -> Any:
    """Draw panels of bars with the same names side by side, and a note below them."""
    lines = textwrap.wrap(note, 136, break_on_hyphens=False)
    high = 0.95 + 0.24 * len(shown[0].rates) + 0.17 * len(lines)
    figure, axes = drawing().subplots(1, len(shown), figsize=(WIDE, high), sharey=True, squeeze=False)
    for ax, one in zip(axes[0], shown, strict=True):
        names = list(one.rates)[::-1]
        bars = ax.barh(names, [one.rates[name] for name in names])
        for bar, name in zip(bars, names, strict=True):
            bar.set_color(OURS if name in one.ours else THEIRS)
        ax.bar_label(bars, [short(one.rates[name]) for name in names], padding=3, fontsize=9)
        ax.set_title(one.title, loc="left", fontsize=10, fontweight="bold")
        ax.set_xlabel("messages per second", fontsize=9)
        ax.margins(x=0.14)
        ax.locator_params(axis="x", nbins=4)
        ax.xaxis.set_major_formatter(lambda value, _: short(value))
        ax.tick_params(labelsize=9)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right"]].set_visible(False)
    below(figure, lines, high)
    return figure


def below(figure: Any, lines: Sequence[str], high: float) -> None:
    """Write lines below a chart, and reserve space for them."""
    if lines:
        figure.text(0.01, 0.01, "\n".join(lines), fontsize=8, color="#374151", va="bottom", linespacing=1.35)
    figure.tight_layout(rect=(0, 0.17 * len(lines) / high, 1, 1))


# --- curves ---------------------------------------------------------------------------------------


def curves(page: Path = PAGE) -> Iterator[tuple[str, list[Table]]]:
    """Yield each growth curve: its name, and a table per store."""
    for name in re.findall(r"<!-- growth (\w+): begin -->", page.read_text()):
        yield name, tables(part(f"growth {name}", page))


def ratios(table: Table) -> dict[str, list[float]]:
    """Return the relative time of each operation per size: the number in parentheses."""
    found = {}
    for at, operation in enumerate(table[0][1:], 1):
        found[operation.removesuffix(MS)] = [float(re.search(r"\(([\d.]+)\)", row[at])[1]) for row in table[1:]]  # type: ignore[index]
    return found


def draw_curves(of: Sequence[Table]) -> Any:
    """Draw a panel per store: time of each operation by size, relative to the smallest size."""
    figure, axes = drawing().subplots(1, len(of), figsize=(WIDE, 3.3), sharey=True, squeeze=False)
    lowest, highest = 0.5, 4.0
    for ax, table in zip(axes[0], of, strict=True):
        store, _, axis = table[0][0].partition(": ")
        sizes = [float(row[0].replace(",", "")) for row in table[1:]]
        for operation, times in ratios(table).items():
            color, mark = LINES[operation]
            seen = [max(one, 0.05) for one in times]  # the page rounds: 0.0 is below 0.05
            ax.plot(range(len(sizes)), seen, marker=mark, markersize=4, color=color, label=operation, linewidth=1.3)
            lowest, highest = min(lowest, *seen), max(highest, *seen)
        ax.set_xticks(range(len(sizes)), [short(size) for size in sizes])
        ax.set_title(NAMES[store], fontsize=10, fontweight="bold")
        ax.set_xlabel(axis, fontsize=9)
        ax.tick_params(labelsize=9)
        ax.axhline(1, color="#94a3b8", linewidth=0.8, zorder=0)
        ax.spines[["top", "right"]].set_visible(False)
    scale(axes[0][0], lowest, highest)
    axes[0][0].set_ylabel(f"times as long as at {short(sizes[0])}", fontsize=9)
    handles, labels = axes[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.suptitle(f"Time of an operation, by {axis}", x=0.01, ha="left", fontsize=10, fontweight="bold")
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def scale(ax: Any, lowest: float, highest: float) -> None:
    """Make the vertical axis of all panels logarithmic, with ticks that do not overlap."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_yscale("log")
    ax.set_ylim(lowest / 1.3, highest * 1.3)
    steps = (1, 2, 5) if highest / lowest < 300 else (1,)
    wanted = [step * 10.0**power for power in range(-2, 8) for step in steps]
    ax.yaxis.set_major_locator(FixedLocator([one for one in wanted if lowest / 1.3 <= one <= highest * 1.3]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


# --- files ----------------------------------------------------------------------------------------


def drawing() -> Any:
    """Return pyplot, configured so that the same chart always gives the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "spark_queue"
    from matplotlib import pyplot as plt

    return plt


def described(of: Sequence[Table]) -> str:
    """Return the numbers of a chart as text."""
    return "; ".join(", ".join(row) for table in of for row in table)


def save(figure: Any, name: str, title: str, of: Sequence[Table], folder: Path = PICTURES) -> None:
    """Write a chart with its title and its numbers, and close it."""
    facts = {"Date": None, "Title": title, "Description": described(of)}
    figure.savefig(folder / f"{name}.svg", metadata=facts)
    drawing().close(figure)


def draw_all(page: Path = PAGE, folder: Path = PICTURES) -> None:
    """Draw all charts of the page."""
    for store, (push, drain, *peers) in stores(page).items():
        both = draw_bars(panels(store, push, drain))
        save(both, f"bench_{store}", f"{NAMES[store]}: push and drain", [push, drain], folder)
        for one in peers:
            bars = beside_peers(store, drain, one)
            save(
                draw_bars([bars], conditions(store, one, page)),
                f"bench_{store}_peers",
                bars.title,
                [drain, one],
                folder,
            )
    for name, of in curves(page):
        save(draw_curves(of), f"growth_{name}", f"Time of an operation, by {name}", of, folder)


if __name__ == "__main__":
    draw_all()
