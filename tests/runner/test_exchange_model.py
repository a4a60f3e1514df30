"""Any exchange over many messages at once, against a model of keuss-server's loop in plain Python.

Each expression of the small grammar below is SQL text, a Column and a function of Python with the
same result. Whether an exchange gets the text, the Column or a callable is left to chance. For a
longer run: SPARK_QUEUE_MODEL_EXAMPLES=500. A failure shows the exchange, and the message of each
copy that is missing.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_queue.graph.model import Changes, Destination, Exchange, Graph, Namespace, Place
from spark_queue.runner import Env
from spark_queue.runner import exchange as runner_exchange
from spark_queue.runner.exchange import ExchangeStep
from spark_queue.runner.selector import SELECTOR_COLUMNS
from tests.runner.test_exchange import ansi_mode

EXAMPLES = int(os.environ.get("SPARK_QUEUE_MODEL_EXAMPLES") or 8)
MESSAGES = 150  #: of one example
LATEST = 253_402_300_799_999  #: ms: the end of the year 9999
HOPS, NAME = "x-hop-count", "x-exchange-name"


class FailsError(Exception):
    """An expression raises on this message."""


# --- messages, and what expressions see of them ---------------------------------------------------


@dataclass(frozen=True)
class View:
    """A message on its way through an exchange. `payload` is a value, not its text."""

    payload: Any
    headers: dict[str, str]
    tries: int
    ansi: bool
    state: dict[str, str] = field(default_factory=dict)

    def field(self, name):
        """`payload:name`: a field of an object, as text."""
        value = self.payload.get(name) if isinstance(self.payload, dict) else None
        return value if value is None or isinstance(value, str) else dump(value)


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


VALUES = [0, 1, 5, -3, "7", "x", "v", "", " 12 ", "=", "true", "null", True, None, 1.5, 2**40, {"a": 5}, [1, "x"]]
NO_OBJECTS = [3, -0.5, 2**53 + 1, "", "v", "ü€𝄞", True, False, None, [], [{"a": 1}]]
WORDS = ["v", "x", "", "5", "-0", "=", "==v", "ü"]
COUNTS = [
    "0",
    "1",
    "2",
    "3",
    "16",
    "17",
    "18",
    "007",
    " 3 ",
    "2\t\n",
    "999999999",
    "1000000000",
    "9" * 38,
    "0" * 40 + "1",
]
NO_COUNTS = ["x", "", " ", "-1", "+1", "1.0", "1 2", "0x1", "٣"]


def some_message(rng):
    """The text of a payload, headers and tries."""
    payload = {name: rng.choice(VALUES) for name in "ato" if rng.random() < 0.8}
    headers = {name: rng.choice(WORDS) for name in "hk" if rng.random() < 0.6}
    if rng.random() < 0.5:
        headers[HOPS] = rng.choice(COUNTS if rng.random() < 0.7 else NO_COUNTS)
    if rng.random() < 0.1:
        headers[NAME] = "another"
    text = dump(payload if rng.random() < 0.8 else rng.choice(NO_OBJECTS))
    return text, headers or rng.choice([None, {}]), rng.randrange(4)


# --- the grammar ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expr:
    """The same in three languages."""

    sql: str
    column: Callable[[Env], Any] = field(repr=False)
    value: Callable[[View], Any] = field(repr=False)


def literal(value):
    sql = "NULL" if value is None else f"'{value}'" if isinstance(value, str) else json.dumps(value)
    return Expr(sql, lambda env: F.lit(value), lambda view: value)


def whole(text):
    """Return a text as INT: other text fails; without ANSI it is NULL, and decimals are lost."""

    def value(view):
        said = text.value(view)
        if said is None:
            return None
        allowed = r"[+-]?\d+" if view.ansi else r"[+-]?\d+(\.\d+)?"
        found = int(float(said)) if re.fullmatch(allowed, said.strip()) else 2**31
        if -(2**31) <= found < 2**31:
            return found
        if view.ansi:
            raise FailsError
        return None

    return Expr(f"{text.sql}::int", lambda env: text.column(env).cast("int"), value)


def tried(text):
    def value(view):
        try:
            return whole(text).value(replace(view, ansi=True))
        except FailsError:
            return None

    return Expr(f"try_cast({text.sql} AS int)", lambda env: text.column(env).try_cast("int"), value)


def of_some(function, *values):
    return None if None in values else function(*values)


def compared(one, k):
    return Expr(
        f"{one.sql} > {k}",
        lambda env: one.column(env) > k,
        lambda view: of_some(lambda value: value > k, one.value(view)),
    )


def equals(one, word):
    return Expr(
        f"{one.sql} = '{word}'",
        lambda env: one.column(env) == word,
        lambda view: of_some(lambda value: value == word, one.value(view)),
    )


def is_null(one):
    return Expr(
        f"{one.sql} IS NULL",
        lambda env: one.column(env).isNull(),
        lambda view: one.value(view) is None,
    )


def divides(one, k):
    def value(view):
        by = one.value(view)
        if by == 0 and view.ansi:
            raise FailsError
        return None if not by else 10 / by > k

    return Expr(f"10 / {one.sql} > {k}", lambda env: F.lit(10) / one.column(env) > k, value)


def raises(one):
    def value(view):
        if one.value(view):
            raise FailsError
        return True

    return Expr(
        f"if({one.sql}, raise_error('no'), true)",
        lambda env: F.when(one.column(env), F.raise_error("no")).otherwise(True),
        value,
    )


def opposite(one):
    return Expr(
        f"NOT ({one.sql})",
        lambda env: ~one.column(env),
        lambda view: of_some(lambda value: not value, one.value(view)),
    )


def both(one, other):
    def value(view):
        first = one.value(view)
        second = False if first is False else other.value(view)
        return False if second is False else of_some(lambda *_: True, first, second)

    return Expr(f"({one.sql}) AND ({other.sql})", lambda env: one.column(env) & other.column(env), value)


def either(one, other):
    def value(view):
        first = one.value(view)
        second = True if first else other.value(view)
        return True if second else of_some(lambda *_: False, first, second)

    return Expr(f"({one.sql}) OR ({other.sql})", lambda env: one.column(env) | other.column(env), value)


def half(one):
    return Expr(
        f"{one.sql} / 2",
        lambda env: one.column(env) / 2,
        lambda view: of_some(lambda value: value / 2, one.value(view)),
    )


def struct(parts):
    sql = ", ".join(f"'{name}', {one.sql}" for name, one in parts.items())
    return Expr(
        f"named_struct({sql})",
        lambda env: F.struct(*(one.column(env).alias(name) for name, one in parts.items())),
        lambda view: {name: one.value(view) for name, one in parts.items()},
    )


def where(condition, one):
    return Expr(
        f"if({condition.sql}, {one.sql}, NULL)",
        lambda env: F.when(condition.column(env), one.column(env)),
        lambda view: one.value(view) if condition.value(view) else None,
    )


def field_of(name):
    return Expr(f"payload:{name}", lambda env: env.field(name), lambda view: view.field(name))


def entry_of(which, name):
    return Expr(
        f"{which}['{name}']", lambda env: getattr(env, which)[name], lambda view: getattr(view, which).get(name)
    )


FIELDS = [field_of(name) for name in "ato"]
HEADERS = [entry_of("headers", name) for name in ("h", "k", HOPS)]
STATES = [entry_of("state", name) for name in ("s", "s2")]
TRIES = Expr("tries", lambda env: env.tries, lambda view: view.tries)

small = st.integers(-1, 6)


def numbers_of(texts):
    return st.one_of(texts.map(whole), texts.map(tried), st.just(TRIES))


def simple_of(texts):
    return st.one_of(
        st.builds(compared, numbers_of(texts), small),
        st.builds(equals, texts, st.sampled_from(["v", "x", "", "5"])),
        st.builds(is_null, texts),
        st.builds(divides, numbers_of(texts), small),
    )


texts = st.sampled_from(FIELDS + HEADERS + STATES)
numbers, simple = numbers_of(texts), simple_of(texts)
#: Without `state`: Spark knows that it is empty at first, and does not compute the `x` of
#: `x OR true`, even if it would fail.
plain = simple_of(st.sampled_from(FIELDS + HEADERS))
truths = st.one_of(
    simple,
    simple.map(opposite),
    simple.map(raises),
    st.builds(both, plain, plain),
    st.builds(either, plain, plain),
    st.sampled_from([True, True, False, None]).map(literal),
)
answers = st.fixed_dictionaries(
    {},
    optional={
        "delay": st.one_of(numbers, numbers.map(half), st.just(literal(10**12))),
        "tries": st.one_of(numbers, st.just(literal(3 * 10**9))),
        "mature": st.one_of(numbers, numbers.map(half), st.just(literal(10**12))),
    },
).filter(bool)
structs = answers.map(struct)
selectors = st.one_of(st.none(), truths, truths, structs, st.builds(where, simple, structs))

payloads = st.one_of(
    st.builds(lambda a, t: struct({"a": a, "t": t}), numbers, texts),
    texts,
    numbers,
    texts.map(lambda t: struct({"o": t})),
)
entries = st.one_of(texts, numbers, st.sampled_from([None, "v", ""]).map(literal))
changes = st.fixed_dictionaries(
    {},
    optional={
        "payload": payloads,
        "headers": st.dictionaries(st.sampled_from(["h", "k", "new", HOPS, NAME]), entries, min_size=1, max_size=2),
        "state": st.dictionaries(st.sampled_from(["s", "s2"]), entries, min_size=1, max_size=2),
    },
)
#: Spark computes once what expressions have in common.
same = numbers.map(lambda one: {"payload": struct({"a": one}), "headers": {"h": one}, "state": {"s": one}})


@dataclass(frozen=True)
class To:
    """A destination, in the terms of the grammar."""

    place: Place
    selector: Expr | None
    changes: dict[str, Any]
    form: str

    def built(self):
        def formed(one):
            if self.form == "sql":
                return one.sql
            return one.column if self.form == "callable" else one.column(Env.columns())

        entries = {
            key: {name: formed(one) for name, one in self.changes.get(key, {}).items()}
            for key in ("headers", "state")
        }
        payload = self.changes.get("payload")
        changes = Changes(payload and formed(payload), **entries)
        return Destination(self.place.queue, self.selector and formed(self.selector), changes, self.place.ns)


destinations = st.builds(
    To,
    st.builds(Place, st.sampled_from(["one", "two"]), st.sampled_from(["here", "there"])),
    selectors,
    st.one_of(changes, changes, same),
    st.sampled_from(["sql", "column", "callable"]),
)


HERE, THERE = Place("one", "here"), Place("two", "there")
A, T, H, S = field_of("a"), field_of("t"), entry_of("headers", "h"), entry_of("state", "s")

#: All that matters, at least once. Of the changes of the second, the first often fails, the other
#: never.
ALL = [
    To(
        HERE,
        raises(equals(T, "x")),
        {
            "payload": struct({"a": TRIES, "t": H}),
            "headers": {"h": literal("v"), "k": literal(None)},
            "state": {"s": A},
        },
        "sql",
    ),
    To(THERE, None, {"payload": T, "headers": {"new": whole(A)}}, "column"),
    To(
        HERE,
        where(is_null(T), struct({"delay": half(TRIES), "tries": whole(S), "mature": whole(HEADERS[2])})),
        {},
        "callable",
    ),
    To(THERE, either(divides(TRIES, 3), equals(S, "7")), {"headers": {HOPS: literal("")}}, "sql"),
]


# --- keuss-server's loop --------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """What a queue gets: `payload` as text; `delay` and `mature` in ms."""

    place: str
    payload: str
    headers: tuple[tuple[str, str], ...]
    delay: int | None = None
    tries: int | None = None
    mature: int | None = None


@dataclass
class Model:
    """Takes messages through an exchange, one by one, and counts."""

    name: str
    to: list[To]
    max_hops: int
    counts: Counter[str] = field(default_factory=Counter)

    def copies(self, view):
        """What a message becomes."""
        self.counts["received"] += 1
        counted = view.headers.get(HOPS)
        is_number = counted is not None and re.fullmatch(r"[0-9]+", counted.strip(" \t\n"))
        hops = int(counted) if is_number else 0
        self.counts["odd_hops"] += counted is not None and not is_number
        if hops >= self.max_hops:
            self.counts["too_many_hops"] += 1
            return [self._lost(view, "__too_many_hops__")]
        view = replace(view, headers=view.headers | {HOPS: str(hops + 1)})
        made = []
        for number, to in enumerate(self.to):
            try:
                values = self._values_of(to, view)
                if values is None:
                    continue
                view = self._changed(to.changes, view)
            except FailsError:
                self.counts[f"failed_{number}"] += 1
                continue
            self.counts[f"pushed_{number}"] += 1
            made.append(copy_of(view, str(to.place), **values))
        if not made:
            self.counts["no_route"] += 1
            made = [self._lost(view, "__no_route__")]
        return made

    def _lost(self, view, queue):
        return copy_of(replace(view, headers=view.headers | {NAME: self.name}), f"here/{queue}")

    def _values_of(self, to, view):
        """What the selector returns for a message that goes there; `None` if it does not."""
        if to.selector is None:
            return {}
        said = to.selector.value(view)
        if not isinstance(said, dict):
            return {} if said else None
        most = {"delay": LATEST // 2, "mature": LATEST, "tries": 2**31 - 1}
        values = {name: of_some(lambda v, n=name: v if n == "tries" else v * 1000, one) for name, one in said.items()}
        if any(one is not None and not 0 <= one <= most[name] for name, one in values.items()):
            raise FailsError
        if values.get("mature") is not None:
            values["delay"] = None
        return values

    def _changed(self, changes, view):
        """The message with all that a destination changes, or nothing of it."""

        def entries(key):
            new = {name: one.value(view) for name, one in changes.get(key, {}).items()}
            both = getattr(view, key) | {name: None if one is None else str(one) for name, one in new.items()}
            return {name: one for name, one in both.items() if one is not None}

        payload = changes["payload"].value(view) if "payload" in changes else dump(view.payload)
        if isinstance(payload, dict):
            payload = dump({name: one for name, one in payload.items() if one is not None})
        try:
            parsed = json.loads(str(payload))
        except ValueError:
            raise FailsError from None
        return replace(view, payload=parsed, headers=entries("headers"), state=entries("state"))


def copy_of(view, place, **values):
    return Copy(place, dump(view.payload), tuple(sorted(view.headers.items())), **values)


def observed(spark, exchange, name, max_hops, rows):
    """The copies that Spark makes, and what it counts."""
    namespaces = dict.fromkeys(["here", "there"], Namespace("sqlite:///q.db"))
    step = ExchangeStep(spark, name, exchange, Graph(namespaces, max_hops=max_hops))
    assert step.mistakes == []
    facts = [(f"m{number}", "in", text, headers, None, tries) for number, (text, headers, tries) in enumerate(rows)]
    counts = Observation()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_exchange, "EXCHANGE_METRICS", counts)  # one object for the process
        copies = step.copies(spark.createDataFrame(facts, SELECTOR_COLUMNS))
    found = copies.select(
        F.concat_ws("/", "ns", "queue"), "payload", "headers", F.col("delay") * 1000, "tries", F.unix_millis("mature")
    ).collect()
    made = [
        Copy(place, dump(json.loads(payload)), tuple(sorted(headers.items())), *values)
        for place, payload, headers, *values in found
    ]
    return made, counts.get


@pytest.mark.full
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    to=st.lists(destinations, min_size=1, max_size=5),
    max_hops=st.sampled_from([17, 3, 1]),
    ansi=st.sampled_from([True, True, False]),
    seed=st.integers(0, 2**32),
)
@example(to=ALL, max_hops=3, ansi=True, seed=1)
def test_an_exchange_does_what_keuss_server_does(spark, to, max_hops, ansi, seed):
    rng = random.Random(seed)
    rows = [some_message(rng) for _ in range(MESSAGES)]
    model = Model("x", to, max_hops)
    wanted: Counter[Copy] = Counter()
    of: dict[Copy, tuple] = {}
    for row in rows:
        text, headers, tries = row
        for copy in model.copies(View(json.loads(text), headers or {}, tries, ansi)):
            wanted[copy] += 1
            of.setdefault(copy, row)
    with ansi_mode(spark, ansi):
        exchange = Exchange(Place("in", "here"), [one.built() for one in to])
        made, counts = observed(spark, exchange, "x", max_hops, rows)

    got = Counter(made)
    shown = "\n".join(map(str, to))
    missing = [(copy, "of", of[copy]) for copy in wanted - got]
    assert (missing, list(got - wanted)) == ([], []), shown
    assert {name: count for name, count in counts.items() if count} == dict(+model.counts), shown
