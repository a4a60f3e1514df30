"""Mask the secrets in URLs, and in texts that may be URLs.

`mask` returns a URL without its secrets. It shows only parts that are certainly harmless: a
password with an unescaped `@`, `/`, `?` or `#` looks like another part of the URL. If this is
possible, it hides all but the scheme.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

#: Parameters of a URL for this package, not for the driver. `spark_queue.options.url` has a table.
PARAMETERS = ("front", "layout", "ns", "pipeline", "signals", "stats", "ttl")

#: Those whose values may be URLs. The name of a database is no secret.
_URL_PARAMETERS, _DATABASE = {"signals", "stats"}, re.compile(r"[\w-]*")

#: Shown instead of a text that may be a URL or a password.
HIDDEN = "(hidden)"

#: Parameters of drivers whose values are no secrets, in lower case. All other values are hidden.
_HARMLESS = {
    *PARAMETERS,
    "appname", "authmechanism", "authsource", "compressors", "connect", "connecttimeoutms", "directconnection",
    "fsync", "heartbeatfrequencyms", "j", "journal", "loadbalanced", "localthresholdms", "maxconnecting",
    "maxidletimems", "maxpoolsize", "maxstalenessseconds", "minpoolsize", "readconcernlevel", "readpreference",
    "readpreferencetags", "replicaset", "retryreads", "retrywrites", "servermonitoringmode",
    "serverselectiontimeoutms", "sockettimeoutms", "srvallowedhostssuffix", "srvmaxhosts", "srvservicename", "ssl",
    "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile", "timeoutms", "tls",
    "tlsallowinvalidcertificates", "tlsallowinvalidhostnames", "tlscafile", "tlscertificatekeyfile", "tlscrlfile",
    "tlsdisablecertificaterevocationcheck", "tlsdisableocspendpointcheck", "tlsinsecure", "tz_aware",
    "unicode_decode_error_handler", "uuidrepresentation", "w", "waitqueuetimeoutms", "wtimeout", "wtimeoutms",
    "zlibcompressionlevel",
}  # fmt: skip

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,15}(?=://)")  # a longer one, or one with capitals, may be a password
_HOST = r"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.-]+)?\]|[\w.-]+|(?:%2[Ff][\w.-]+)+\.sock)(?::\d{0,5})?"
_SERVER = re.compile(rf"(?:(?P<login>[^/?#]*)@)?(?P<place>{_HOST}(?:,{_HOST})*(?:/[\w.~$+-]*)?)")
_SENTINELS = re.compile(rf"{_SERVER.pattern.removesuffix(')')}(?:/[0-9]*)?)")  # the place: …/master/db
_PATH = re.compile(r"/(?![^/]*[:@])(?!.*:.*@)[^\x00-\x1f\x7f]*")
_USER = re.compile(r"[\w.~+-]*")
_NAME = re.compile(r"[A-Za-z]\w*")
_VALUE = re.compile(r"[\w.,:$%+/~*-]*")


def scheme_of(url: str) -> str:
    """Return the scheme of a URL; an empty text if it has none."""
    found = _SCHEME.match(url)
    return found[0] if found else ""


def mask(url: str) -> str:
    """Return the URL without its secrets, for messages and logs.

    If the URL cannot be parsed, it is the scheme and `…`; without a valid scheme, `(hidden)`.
    """
    scheme = scheme_of(url)
    if not scheme:
        return HIDDEN
    head, sign, query = url[len(scheme) + 3 :].partition("?")
    server = (_SENTINELS if scheme.endswith("+sentinel") else _SERVER).fullmatch(head)
    if "@" in query or not (server or _PATH.fullmatch(head) or not head):
        return f"{scheme}://…"
    if server and server["login"] is not None:
        head = f"{_mask_login(server['login'])}@{server['place']}"
    return f"{scheme}://{head}{sign}{'&'.join(_mask_query(query))}"


def _mask_login(login: str) -> str:
    user, colon, password = login.partition(":")
    # Without a user, without a password, or with a second colon, the text may be the password in
    # the wrong place.
    is_user = not user or (password and ":" not in password and _USER.fullmatch(user))
    return f"{user if is_user else '***'}{colon}{'***' if colon else ''}"


def _mask_query(query: str) -> Iterator[str]:
    """Yield parameters up to the first that may be a secret: it may contain a raw `&`."""
    parts = query.split("&")
    for number, one in enumerate(parts):
        if not is_harmless(one):
            yield f"{name}=***" if (name := parameter_name(one)) else "***" if one else ""
            if number + 1 < len(parts):
                yield "…"
            return
        yield one


def is_harmless(parameter: str) -> bool:
    """Return whether a parameter of a URL, `name=value`, holds no secret."""
    name, sign, value = parameter.partition("=")
    name = unquote_plus(name).lower()
    form = _DATABASE if name in _URL_PARAMETERS else _VALUE
    return bool(sign) and name in _HARMLESS and form.fullmatch(value) is not None


def parameter_name(parameter: str) -> str:
    """Return the name of a parameter, `name=value`; an empty text if it does not look like one."""
    name, sign, _ = parameter.partition("=")
    return name if sign and _NAME.fullmatch(name) else ""


def scrub(text: str, url: str) -> str:
    """Return a text, mostly a driver's error, without the secrets of the URL in any encoding."""
    found = {form for one in _find_secrets(url) for form in _spellings(one) if len(form) > 3}
    for one in sorted(found, key=len, reverse=True):  # one may be a part of another
        text = text.replace(one, "***")
    return text


def _find_secrets(url: str) -> Iterator[str]:
    """Yield the parts of a driver's URL that may be secret."""
    head, _, query = url.partition("://")[2].partition("?")
    login = re.split("[/#]", head, maxsplit=1)[0].rpartition("@")[0]
    yield login.partition(":")[2] or login
    secret_seen = False
    for one in query.split("&"):
        secret_seen = secret_seen or not is_harmless(one)
        if secret_seen:  # a secret with a raw `&` looks like several parameters
            value = one.partition("=")[2]
            yield value
            for part in unquote_plus(value).split(","):  # authMechanismProperties=NAME:secret,…
                name, colon, secret = part.partition(":")
                yield from [secret] if colon and re.fullmatch("[A-Z]+(_[A-Z]+)*", name) else [name, secret]


def _spellings(secret: str) -> Iterator[str]:
    for one in (secret, unquote(secret), unquote_plus(secret)):
        yield from (one, quote(one), quote(one, safe=""), quote_plus(one), repr(one)[1:-1], json.dumps(one)[1:-1])


def cause_without_secrets(error: BaseException, url: str) -> BaseException | None:
    """Return a driver's error as the cause of ours.

    Return `None` if an error in its chain contains a secret of the URL.
    """
    one: BaseException | None = error
    while one is not None:
        if scrub(str(one), url) != str(one):
            return None
        one = one.__cause__ or one.__context__
    return error


def mask_if_url(text: str) -> str:
    """Return a text that a user wrote where no URL belongs, masked if it looks like a URL."""
    return mask(text) if _may_be_url(text) else text


def masked_repr(value: object) -> str:
    """Return a value that a user wrote, in quotes, masked if it is text that looks like a URL."""
    return repr(mask_if_url(value) if isinstance(value, str) else value)


def mask_words(text: str, words: Iterable[str]) -> str:
    """Return a text that may quote these words, with each word masked that looks like a URL."""
    found = [part for word in words for part in (word, word.partition("=")[2]) if part and _may_be_url(part)]
    for one in sorted(found, key=len, reverse=True):  # one may be a part of another
        for form in (repr(one)[1:-1], one):
            text = text.replace(form, mask(one))
    return text


def _may_be_url(text: str) -> bool:
    return "://" in text or re.search(":.*@", text, re.DOTALL) is not None
