"""URLs of Redis: of one server, or of the Sentinels that know which server is the master.

    redis://[user:password@]host[:port][/db]
    redis+sentinel://[user:password@]host[:port][,host2[:port2]…]/master[/db]

`rediss` instead of `redis`: with TLS, also to the Sentinels.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_plus, urlsplit

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.masking import mask, parameter_name
from spark_queue.options.url import StoreUrl

#: The end of the schemes of Sentinels, and the port on which they listen by default.
SENTINEL, SENTINEL_PORT = "+sentinel", 26379

#: Parameters that the URL of TLS may have, by their names in redis-py.
TLS_OPTIONS = {"ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"}

#: How a URL is written.
FORM = "redis://[user:password@]host[:port][/db] or rediss://…"
SENTINEL_FORM = "redis+sentinel://[user:password@]host:port,host2:port2/master/db or rediss+sentinel://…"

_MASTER = re.compile(r"[\w.-]+", re.ASCII)


class RedisAddress(NamedTuple):
    """Where the server is.

    `url` is a URL for redis-py. If there are `sentinels`, its host and port are those of the first
    one, and they know those of `master`.
    """

    url: str
    sentinels: tuple[tuple[str, int], ...] = ()
    master: str = ""

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Return the address in the URL of a store. Raises `OptionError` if the URL is invalid."""
        given = StoreUrl.parse(url).url
        scheme, _, rest = given.partition("://")
        if "@" in "".join(re.split(r"[/?#]", rest, maxsplit=1)[1:]):  # it is unknown which part to mask
            raise OptionError(
                f"option 'url': the {scheme}:// URL has an @ after its host: write / ? # as %2F %3F %23",
                option="url",
            )
        if not scheme.endswith(SENTINEL):
            _check(url, given, FORM)
            return cls(given)
        place, query_sign, query = rest.partition("?")
        servers, _, path = place.partition("/")
        login, at, hosts = servers.rpartition("@")
        master, _, database = path.partition("/")
        found = hosts.split(",")
        plain = [
            f"{scheme.removesuffix(SENTINEL)}://{login}{at}{host}/{database}{query_sign}{query}" for host in found
        ]
        for one in plain:
            _check(url, one, SENTINEL_FORM)
        if not _MASTER.fullmatch(master) or (master.isdigit() and not database):
            raise _invalid(url, "names no master after its hosts", SENTINEL_FORM)
        parts = [urlsplit(one) for one in plain]
        return cls(plain[0], tuple((one.hostname or "", one.port or SENTINEL_PORT) for one in parts), master)


def _check(url: str, plain: str, form: str) -> None:
    """Check a URL of one server, which is a part of `url`. Raises `OptionError`."""
    try:
        parts = urlsplit(plain)
        port = parts.port
    except ValueError:  # the error quotes the URL
        sentinels = form == FORM and "," in plain.partition("?")[0]
        hint = "; for Sentinels, begin with redis+sentinel://" if sentinels else ""
        raise _invalid(url, f"has a malformed host or port{hint}", form) from None
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or port == 0:
        raise _invalid(url, "names no server", form)
    if not re.fullmatch(r"/?|/\d+", parts.path):
        shown = "what follows the host" if "…" in mask(url) else repr(parts.path[1:])
        raise _invalid(url, f"names no database: {shown} is not a number", form)
    if parts.fragment:
        raise _invalid(url, "has a fragment", form)
    allowed = TLS_OPTIONS if parts.scheme == "rediss" else set()
    for one in filter(None, parts.query.split("&")):
        if unquote_plus(one.partition("=")[0]) not in allowed:
            name = parameter_name(one)
            if name:
                raise _invalid(url, f"has the unknown parameter {name!r}{did_you_mean(name, allowed)}", form)
            raise _invalid(url, "has unknown text after the ?", form)


def _invalid(url: str, what: str, form: str) -> OptionError:
    return OptionError(f"option 'url': {mask(url)!r} {what}; write {form}", option="url")
