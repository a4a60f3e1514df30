"""A server refuses a password, and no error, traceback, log or output of the CLI shows it."""

from __future__ import annotations

import logging
import pickle
import traceback
from urllib.parse import quote, unquote

import pytest

from spark_queue import Queue
from spark_queue.admin import doctor
from spark_queue.admin.sizes import sizes
from spark_queue.errors import StoreError
from spark_queue.events.queue import Events
from tests.command_line import Run

MARK = "Zqx7Kd"
PASSWORD = f"{MARK}@:/?#[] %\n'\"é&w=1%40{MARK}"


def check_no_password(*texts):
    for text in map(str, texts):
        assert MARK.lower() not in unquote(text).lower(), text


def push_one(url):
    with Queue(url, "q") as queue:
        queue.push(1)


def summary(url):
    with Events(url, "q") as events:
        events.summary()


@pytest.mark.stores(server=True)
@pytest.mark.every_store
def test_a_wrong_password_shows_nowhere(url_of, scheme, caplog):
    caplog.set_level(logging.DEBUG)
    url = url_of(scheme).replace("://", f"://me:{quote(PASSWORD, safe='')}@")
    for call in (sizes, push_one, summary):
        with pytest.raises(StoreError) as caught:
            call(url)
        error = caught.value
        again = pickle.loads(pickle.dumps(error))
        check_no_password(error, error.facts, again, again.facts, "".join(traceback.format_exception(error)))
        assert str(error.facts["url"]).startswith(f"{scheme}://me:***@")
    check_no_password(*doctor._check_database(url))
    for words in (["size", url, "--json"], ["peek", url, "q"], ["pop", url, "q"]):
        done = Run(*words)
        assert done.code == 1 and "***" in done.err and "password" in done.err
        check_no_password(done.out, done.err)
    check_no_password(caplog.text, *(vars(one) for one in caplog.records))
