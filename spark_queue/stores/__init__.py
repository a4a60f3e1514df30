"""The stores: one database behind one URL, holding many queues.

To add a database, add a module to this folder and a line to `STORES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from spark_queue.errors import DriverMissing, OptionError, did_you_mean
from spark_queue.options.inputs import LOG
from spark_queue.options.masking import scheme_of
from spark_queue.options.parts import Database
from spark_queue.options.roles import OptionsType
from spark_queue.options.url import StoreUrl
from spark_queue.options.values import BUCKET, SINGLE
from spark_queue.stores.base import Store
from spark_queue.stores.limits import StoreLimits


@dataclass(frozen=True)
class Registration:
    """A store as it is known before its module is imported.

    `path`: `module:class`. `extra`: the extra of this package that installs its driver. `driver`:
    the name of the driver on the package index. Both are empty if no driver is needed. `server`:
    the kind of server that keeps the data, empty for an embedded store. `variant_of`: the scheme of
    the same store, if this scheme only connects in another way (TLS, lookup in DNS or by
    Sentinels).
    """

    path: str
    extra: str = ""
    driver: str = ""
    server: str = ""
    variant_of: str = ""


_MONGODB = Registration(
    "spark_queue.stores.mongodb.store:MongoStore", extra="mongodb", driver="pymongo", server="mongodb"
)
_REDIS = Registration("spark_queue.stores.redis.store:RedisStore", extra="redis", driver="redis", server="redis")

#: URL scheme -> its store.
STORES: dict[str, Registration] = {
    "sqlite": Registration("spark_queue.stores.sqlite.store:SqliteStore"),
    "mongodb": _MONGODB,
    "mongodb+srv": replace(_MONGODB, variant_of="mongodb"),
    "redis": _REDIS,
    **{one: replace(_REDIS, variant_of="redis") for one in ("rediss", "redis+sentinel", "rediss+sentinel")},
}


def store_class(url: str) -> type[Store]:
    """Return the class of the store for the scheme and layout of a URL. Opens nothing.

    Raises `OptionError` for an unknown scheme or layout, and `DriverMissing`, which names the extra
    to install.
    """
    scheme = scheme_of(url)
    if not scheme:
        *others, last = (f"{one}://" for one in STORES)
        raise OptionError(
            f"option 'url': it must begin with {', '.join(others)} or {last}, such as sqlite:///queues.db",
            option="url",
        )
    if scheme not in STORES:
        hint = did_you_mean(scheme, STORES) or f"; known are {', '.join(f'{one}://' for one in STORES)}"
        raise OptionError(f"option 'url': no store for {scheme}://{hint}", option="url")
    registered = STORES[scheme]
    default_class = _import_store(registered.path, scheme, registered.extra)
    address = StoreUrl.parse(url)
    layout = address.parameters.get("layout")
    if layout is None:
        return default_class
    if layout not in default_class.layouts:
        layouts = ", ".join(default_class.layouts) or "none to choose from"
        known = f"; it has {layouts}, and in a write {SINGLE} and {BUCKET}"
        hint = did_you_mean(layout, [*default_class.layouts, SINGLE, BUCKET]) or known
        raise OptionError(f"{scheme}:// has no layout {address.masked_parameter('layout')!r}{hint}", option="layout")
    return _import_store(default_class.layouts[layout], scheme, registered.extra)


def _import_store(path: str, scheme: str, extra: str) -> type[Store]:
    module, _, name = path.partition(":")
    try:
        found: type[Store] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("spark_queue"):
            raise
        raise DriverMissing(
            f"{scheme}:// needs the package {error.name!r}, which is not installed: "
            f"pip install 'spark-queue[{extra}]'",
            extra=extra,
        ) from error
    return found


def open_store(
    url: str, *, retry_timeout: int = 5_000, create: bool = True, limits: StoreLimits | None = None
) -> Store:
    """Return the store behind a URL.

    It connects at its first operation, so this does no I/O. Close it, or use `with`.
    `retry_timeout`: how long to retry while the database cannot be reached (ms). `create`: whether
    the first operation creates a missing SQLite file; else it raises `OptionError`. `limits`: see
    `stores/limits.py`. Raises `OptionError` for an invalid URL, and `DriverMissing`.
    """
    return store_class(url)(url, retry_timeout=retry_timeout, create=create, limits=limits)


def open_database(database: Database, *, create: bool = True) -> Store:
    """Return the store of a single database.

    Raises `OptionError` and `DriverMissing` as `open_store`.
    """
    return open_store(database.url, retry_timeout=database.retry_timeout, create=create)


def resolve_options(options: OptionsType) -> OptionsType:
    """Check URLs and queues, and return the options with URLs that are valid in every process.

    Connects to nothing. Raises `OptionError` for an invalid URL or queue, or for `mode=log` with a
    layout that cannot retain messages. Raises `DriverMissing`.
    """

    def resolve_url(ns: str, url: str) -> str:
        return resolve_place(url, options.queues_in(ns))

    return replace(options, database=options.database.map_urls(resolve_url))


def resolve_place(url: str, queues: Sequence[tuple[str, str]]) -> str:
    """Check a URL and the names of queues, each with its mode.

    Return the URL as it is valid in every process. Raises `OptionError` and `DriverMissing` as
    `resolve_options`.
    """
    with open_store(url) as store:
        for queue, _ in queues:
            store.check_queue(queue)
        for queue, mode in queues:
            if mode == LOG:
                store.check_log(queue)
        return store.url


def pin_databases(options: OptionsType, *, create: bool) -> OptionsType:
    """Return the options for tasks: the URL of a file identifies the file, so no task uses another.

    `create`: whether missing files are created first. A task creates none. Raises `OptionError` for
    an invalid URL, and `DriverMissing`.
    """

    def pin_url(_: str, url: str) -> str:
        with open_store(url, retry_timeout=options.database.retry_timeout, create=create) as store:
            return store.task_url()

    return replace(options, database=options.database.map_urls(pin_url))


Store.open_other = open_store
