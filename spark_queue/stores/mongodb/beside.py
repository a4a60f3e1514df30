"""Where statistics and signals lie: beside the queues, or where keuss is configured to keep them.

By default keuss keeps them in databases on the same server, whose names are that of the queues and
`_stats` or `_signal`. The parameters `stats` and `signals` of a URL name other databases there, or
are URLs of other servers. Signals may also go over Redis, as with keuss' bus `redis-pubsub`. Both
sides must use the same places: otherwise a pause does not reach the other side, and its consumers
poll.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from pymongo import WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from spark_queue.errors import OptionError, StoreError
from spark_queue.options.masking import mask, scheme_of
from spark_queue.options.url import StoreUrl
from spark_queue.stores.base import Store
from spark_queue.stores.mongodb.documents import Document
from spark_queue.stores.mongodb.marks import NAMESPACE_EXISTS
from spark_queue.stores.services.signals import SignallingStore

#: The parameters, with the end of the default name, and the schemes that a URL may have.
STATS, SIGNALS = "stats", "signals"
SUFFIXES = {STATS: "_stats", SIGNALS: "_signal"}
_MONGODB = ("mongodb", "mongodb+srv")
_REDIS = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
SCHEMES = {STATS: _MONGODB, SIGNALS: (*_MONGODB, *_REDIS)}

#: Bytes of the capped collection of signals, as in keuss.
SIGNALS_BYTES = 5_242_880

_DATABASE_NAME = re.compile(r"""[^/\\. "$*<>:|?\0]{1,63}""")


def check_places(parameters: Mapping[str, str]) -> None:
    """Raise `OptionError` if a parameter is neither the name of a database nor a fitting URL."""
    for name, schemes in SCHEMES.items():
        value = parameters.get(name)
        if value is None or _DATABASE_NAME.fullmatch(value):
            continue
        if scheme_of(value) not in schemes:
            raise OptionError(
                f"option 'url': its parameter {name!r} must be the name of a database, or a URL with "
                f"{' or '.join(f'{one}://' for one in schemes)} whose special characters are written as %40 (@), "
                "%3A (:), %2F (/), %3F (?), %26 (&)",
                option="url",
            )
        try:
            _resolve(value)
        except OptionError as error:
            raise OptionError(f"option 'url', its parameter {name!r}: {error}", option="url") from None


def _resolve(url: str) -> None:
    if StoreUrl.parse(url).parameters:
        raise OptionError(f"{mask(url)} is not that of a queue, and can have no parameters of one", option="url")
    Store.open_other(url).close()  # connects to nothing


def _check_capped(database: Database[Document]) -> None:
    """Raise `StoreError` if the collection of signals belongs to another program."""
    if not database["default"].options().get("capped"):
        raise StoreError(
            f"the collection 'default' of the database {database.name!r} is not that of signals, since it is not "
            "capped. It was not changed. Name another database: ?signals=NAME in the URL"
        )


class Beside:
    """The places of statistics and signals of one store.

    Safe to share among threads, and across a fork.
    """

    def __init__(self, parameters: Mapping[str, str], ns: str, database: Callable[[], Database[Document]]) -> None:
        """Connect to nothing yet. `database` returns that of the queues."""
        self._parameters, self._ns, self._database = parameters, ns, database
        self._stores: dict[str, SignallingStore] = {}
        self._signals_exist = False  # whether the collection of signals exists

    def statistics(self, concern: WriteConcern | None = None) -> Collection[Document]:
        """Return the collection of statistics."""
        return self._find_database(STATS, concern)["keuss_stats"]

    def signals(self, *, check: bool = False) -> Collection[Document]:
        """Return the capped collection of signals. With `check`, it may have been dropped since.

        Raises `StoreError` if another program has a collection in its place.
        """
        database = self._find_database(SIGNALS, WriteConcern(w=1))
        if check or not self._signals_exist:
            try:
                made = database.create_collection("default", capped=True, size=SIGNALS_BYTES, check_exists=False)
                made.insert_one({"dummy": True})  # a tailable cursor fails on an empty one
            except OperationFailure as error:
                if error.code != NAMESPACE_EXISTS:
                    raise
                _check_capped(database)
            self._signals_exist = True
        return database["default"]

    @property
    def redis(self) -> SignallingStore | None:
        """The store over whose database signals go, if that is Redis."""
        return self._open(SIGNALS) if self._parameters.get(SIGNALS, "").startswith("redis") else None

    def _find_database(self, parameter: str, concern: WriteConcern | None) -> Database[Document]:
        place = self._parameters.get(parameter, "")
        own = self._database()
        if "://" in place:
            # Only MongoDB stores have such a method.
            own = cast("Any", self._open(parameter))._database()
            place = own.name
        name = place or f"{own.name}{SUFFIXES[parameter]}"
        return own.client.get_database(name, write_concern=concern)

    def _open(self, parameter: str) -> SignallingStore:
        """Return a store of the URL in a parameter."""
        if parameter not in self._stores:
            url = StoreUrl.parse(self._parameters[parameter]).with_parameters(ns=self._ns)
            self._stores.setdefault(parameter, cast("SignallingStore", Store.open_other(url)))
        return self._stores[parameter]

    def close(self) -> None:
        """Release connections."""
        for store in self._stores.values():
            store.close()
