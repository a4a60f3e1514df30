"""Streams that run at the same time, whose queues would be the dead-letter queues of each other."""

from __future__ import annotations

from contextlib import closing

import pytest

from spark_queue.errors import OptionError
from spark_queue.options.roles import parse_options
from spark_queue.spark.read.consumer import Consumer
from spark_queue.stores.services.dead_letters import history_of
from spark_queue.stores.services.owner import revoke


def consumer(url, queue, **options):
    raw = {"url": url, "queue": queue, "waitTimeout": "50ms", "consumer": "etl"} | options
    return closing(Consumer(parse_options(raw, "stream")))


@pytest.mark.every_store
def test_a_stream_is_refused_while_another_one_would_move_its_dead_letters_back(any_url, name):
    a, b = f"{name}.a", f"{name}.b"
    with consumer(any_url, a, deadLetterQueue=b) as first:
        first.next(first.initial, 1)  # it becomes the owner of its consumer
        with pytest.raises(OptionError, match=f"'{b}'|'{a}'") as caught:
            Consumer(parse_options({"url": any_url, "queue": b, "deadLetterQueue": a}, "stream"))
        assert f"option 'deadLetterQueue' is '{a}', whose own dead letters come back to '{b}'" in str(caught.value)
        for options in ({}, {"deadLetterQueue": f"{name}.c"}):
            with consumer(any_url, b, **options) as other:
                other.next(other.initial, 1)
        with consumer(any_url, f"{name}.d", deadLetterQueue=a):
            pass
        revoke(first.store, a, first.initial["consumer"])
        with consumer(any_url, b, deadLetterQueue=a) as alone:
            alone.next(alone.initial, 1)


def test_a_stream_without_its_own_dead_letter_queue_notes_none(sqlite_url, name):
    a, b = f"{name}.a", f"{name}.b"
    for options in ({"deadLetterQueue": b, "history": "1h"}, {}):
        with consumer(sqlite_url, a, **options) as one:
            one.next(one.initial, 1)
            assert history_of(one.store, a, "etl") == (3_600_000 if options else 0)
            revoke(one.store, a, one.initial["consumer"])
