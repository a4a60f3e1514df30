"""Tokens of the work that executor queries run.

Everybody who may send SQL to a session can set the options of a data source, and can often see
those of others. So the only option of `format("queue_events")` is a token. It is an HMAC of the
URL, queue, consumer and other options of a query that this process has registered. The functions
and the options themselves are in the class that the driver registers with Spark: SQL cannot change
that. The class has digests of the tokens, not the key: the key stays in the driver.

The key is in an environment variable, in a file, or made up by each process. It is never a Spark
conf, since `SET` shows those to everybody.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from spark_queue.errors import OptionError

#: The environment variables that name the key, or the file that has it.
KEY_VARIABLE, KEY_FILE_VARIABLE = "SPARK_QUEUE_EVENTS_KEY", "SPARK_QUEUE_EVENTS_KEY_FILE"

#: The name of the data source, and its only option.
SOURCE_NAME, TOKEN_OPTION = "queue_events", "work"

#: The shortest key (characters), and the longest file of one (bytes).
MIN_KEY, MAX_KEY_FILE = 32, 4096

_TOKEN = re.compile(r"[0-9a-f]{64}")
_PURPOSE = b"spark_queue: work of an executor query, 1\n"

#: The key of this process, if none is configured.
_own_key = secrets.token_bytes(32)


@dataclass(frozen=True, eq=False)
class RegisteredWork:
    """The work of an executor query: pickled, with the options of its source.

    `token`: the option that names it. `digest`: the digest of the token.
    """

    options: Mapping[str, str] = field(repr=False)
    pickled: bytes = field(repr=False)
    token: str = field(repr=False)

    @property
    def digest(self) -> str:
        """The digest of the token, by which the registered class knows it."""
        return digest_of(self.token)


#: What Spark gets with the class, by the digest of the token: options, and pickled work.
Works = dict[str, tuple[dict[str, str], bytes]]

#: The work of this process, as long as its query object exists.
_registered: WeakValueDictionary[str, RegisteredWork] = WeakValueDictionary()

#: Held while a class is registered, so that a later one has the work of all earlier ones.
registering = threading.Lock()


def register_work(options: Mapping[str, str], pickled: bytes) -> RegisteredWork:
    """Register work, in place of earlier work with the same options.

    Raises `OptionError` if the key is configured in a wrong way.
    """
    text = json.dumps(sorted(options.items()))
    token = hmac.new(signing_key(), _PURPOSE + text.encode(), hashlib.sha256).hexdigest()
    work = RegisteredWork(dict(options), pickled, token)
    _registered[work.digest] = work
    return work


def registered_works() -> Works:
    """Return all work of this process."""
    return {digest: (dict(one.options), one.pickled) for digest, one in _registered.items()}


def find_work(options: Mapping[str, str], works: Works) -> tuple[dict[str, str], bytes]:
    """Return the options and the pickled work that the option `work` of a source names.

    It imports and unpickles nothing. Raises `OptionError` if the option is not a token of this
    work, or if there are other options.
    """
    given = {name.lower(): value for name, value in options.items()}
    token = given.pop(TOKEN_OPTION, None)
    if given:
        raise OptionError(
            f'format("{SOURCE_NAME}") takes no option {min(given)!r}: the token in its option {TOKEN_OPTION!r} '
            "fixes all others; pass them to ExecutorQuery(options=…)",
            option=min(given),
        )
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise OptionError(
            f'option {TOKEN_OPTION!r} of format("{SOURCE_NAME}") must be a token that a driver has signed, and '
            "nothing else: start a query with spark_queue.events.spark_query.ExecutorQuery",
            option=TOKEN_OPTION,
        )
    found = works.get(digest_of(token))
    if found is None:
        raise OptionError(
            f'option {TOKEN_OPTION!r} of format("{SOURCE_NAME}") is not a token of work that the driver of this '
            "session has registered: start the query with spark_queue.events.spark_query.ExecutorQuery there",
            option=TOKEN_OPTION,
        )
    return found


def digest_of(token: str) -> str:
    """Return the digest of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def signing_key() -> bytes:
    """Return the key of this process.

    Raises `OptionError` if the environment has a key that is too short, or names a file that others
    may read or write.
    """
    key, file = os.environ.get(KEY_VARIABLE), os.environ.get(KEY_FILE_VARIABLE)
    if key is not None and file is not None:
        raise OptionError(f"${KEY_VARIABLE} and ${KEY_FILE_VARIABLE} are both set: unset one of them", option="key")
    if key is None and file is None:
        return _own_key
    place = f"${KEY_VARIABLE}" if file is None else f"${KEY_FILE_VARIABLE} ({file})"
    found = (key if file is None else _read_key(Path(file), place)) or ""
    if len(found.strip()) < MIN_KEY:
        raise OptionError(
            f"{place}: the key must have at least {MIN_KEY} characters; make one with: openssl rand -hex 32",
            option="key",
        )
    return found.strip().encode()


def _read_key(file: Path, place: str) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise OptionError(f"{place}: it is not a file", option="key")
            if about.st_uid not in (os.geteuid(), 0):
                raise OptionError(f"{place}: it belongs to another user; make a copy of your own", option="key")
            if about.st_mode & 0o077:
                raise OptionError(
                    f"{place}: its mode is {stat.S_IMODE(about.st_mode):o}, so others may use the key: make a new "
                    f"one, and type: chmod 600 {file}",
                    option="key",
                )
            return opened.read(MAX_KEY_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{place}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}", option="key") from None


def check_confs(confs: Mapping[str, str]) -> None:
    """Raise `OptionError` if the confs of a session have a key: everybody can read them."""
    for name in confs:
        if KEY_VARIABLE.lower() in name.lower() and not name.lower().endswith(KEY_FILE_VARIABLE.lower()):
            raise OptionError(
                f"the conf {name} has a key, which SET and Spark's web page show to everybody: make a new key, and "
                f"set ${KEY_FILE_VARIABLE} to a file of mode 600 that has it",
                option="key",
            )
