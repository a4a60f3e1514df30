"""The stores: one database behind one URL, holding many queues.

To add a database, add a module to this folder and a line to `STORES`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module

from spark_queue.errors import DriverMissing, OptionError, did_you_mean
from spark_queue.options.inputs import LOG
from spark_queue.options.masking import scheme_of
from spark_queue.options.queue_options import QueueOptions
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
    store = store_class(url)(url, retry_timeout=retry_timeout, limits=limits)
    store.create_missing = create
    return store


def resolve_options(options: QueueOptions) -> QueueOptions:
    """Check URLs and queues, and return the options with URLs that are valid in every process.

    Connects to nothing. Raises `OptionError` for an invalid URL or queue, or for `mode=log` with a
    layout that cannot retain messages. Raises `DriverMissing`.
    """
    inputs = (options.inputs or {}).values()

    def resolve_url(url: str, ns: str | None = None) -> str:
        logs = [one.queue for one in inputs if one.ns == ns and one.mode == LOG]
        read = [one.queue for one in inputs if one.ns == ns]
        with open_store(url) as store:
            for queue in (options.queue, options.dead_letter_queue, *read):
                if queue is not None:
                    store.check_queue(queue)
            for queue in [options.queue or ""] if options.mode == LOG else logs:
                store.check_log(queue)
            return store.url

    if options.urls is not None:
        return replace(options, urls={name: resolve_url(url, name) for name, url in options.urls.items()})
    return replace(options, url=resolve_url(options.url))


def pin_databases(options: QueueOptions, *, create: bool) -> QueueOptions:
    """Return the options for tasks: the URL of a file identifies the file, so no task uses another.

    `create`: whether missing files are created first. A task creates none. Raises `OptionError` for
    an invalid URL, and `DriverMissing`.
    """

    def pin_url(url: str) -> str:
        with open_store(url, retry_timeout=options.retry_timeout, create=create) as store:
            return store.task_url()

    if options.urls is not None:
        return replace(options, urls={name: pin_url(url) for name, url in options.urls.items()})
    return replace(options, url=pin_url(options.url))


Store.open_other = open_store
