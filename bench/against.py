"""Compare the rates of a commit with those of its parent, as measured by bench/commits.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Minimum geometric mean of the ratios of a store, and minimum ratio of one way.
LEAST_MEAN, LEAST_RATIO = 0.97, 0.90

#: Messages per second in each round, by store and way.
Rates = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Compared:
    """One way of a store, with its rates on both sides in each round."""

    store: str
    way: str
    parent: Sequence[float]
    new: Sequence[float]

    @property
    def ratio(self) -> float:
        """Return the median ratio of the rounds. In a round, both sides had the same conditions."""
        return statistics.median(self.rounds)

    @property
    def rounds(self) -> list[float]:
        """Return the ratio of each round. Their spread shows how noisy the machine was."""
        return [new / parent for new, parent in zip(self.new, self.parent, strict=True)]


def compared(parent: Rates, new: Rates) -> list[Compared]:
    """Compare all ways that both sides have."""
    return [
        Compared(store, way, rates, new[store][way])
        for store, ways in parent.items()
        for way, rates in ways.items()
        if way in new[store]
    ]


def means(found: Sequence[Compared]) -> dict[str, float]:
    """Return the geometric mean of each store's ratios."""
    stores = dict.fromkeys(one.store for one in found)
    return {store: statistics.geometric_mean(one.ratio for one in found if one.store == store) for store in stores}


def slower(found: Sequence[Compared]) -> list[str]:
    """Return the failures: stores with a low mean, and ways with a low ratio."""
    stores = [
        f"{store}: the geometric mean {mean:.3f} is below {LEAST_MEAN:.2f}"
        for store, mean in means(found).items()
        if mean < LEAST_MEAN
    ]
    ways = [
        f"{one.store}: {one.way}: the ratio {one.ratio:.3f} is below {LEAST_RATIO:.2f}"
        for one in found
        if one.ratio < LEAST_RATIO
    ]
    return stores + ways


def rows(found: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return the table of one store. The first row is its header."""
    head = (f"{found[0].store}: messages/s", "parent", "new", "ratio", "ratio of each round", "")
    made = [
        (
            one.way,
            f"{statistics.median(one.parent):,.0f}",
            f"{statistics.median(one.new):,.0f}",
            f"{one.ratio:.3f}",
            " ".join(f"{ratio:.2f}" for ratio in one.rounds),
            "SLOWER" if one.ratio < LEAST_RATIO else "ok",
        )
        for one in found
    ]
    (mean,) = means(found).values()
    return [head, *made, ("geometric mean", "", "", f"{mean:.3f}", "", "SLOWER" if mean < LEAST_MEAN else "ok")]


def as_json(found: Sequence[Compared]) -> dict[str, Any]:
    """Return means, ratios and rates by store, and the failures."""
    stores: dict[str, Any] = {
        store: {
            "geometric mean": round(mean, 4),
            "ways": {
                one.way: {"ratio": round(one.ratio, 4), "parent": list(one.parent), "new": list(one.new)}
                for one in found
                if one.store == store
            },
        }
        for store, mean in means(found).items()
    }
    return {"least": {"geometric mean": LEAST_MEAN, "ratio": LEAST_RATIO}, "stores": stores, "slower": slower(found)}
