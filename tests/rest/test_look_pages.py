"""Pages of `GET …/messages`: their cursors are valid on every server, also those of earlier versions."""

from __future__ import annotations

import base64
import json

import pytest

from spark_queue import Queue
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings, create_app
from tests.rest.in_process import calling


def look(url, queue, **params):
    """Return the payloads of a page, and its cursor, from a server that is started for it."""
    with calling(create_app(Settings(graph=Graph({"a": Namespace(url)})))) as http:
        answer = http.get(f"/v1/queues/a/{queue}/messages", params=params)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return [one["payload"] for one in found["messages"]], found["after"]


def old_cursor(*values):
    """Return a cursor as earlier versions made it."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode()


@pytest.mark.every_store
def test_a_cursor_survives_a_restart_of_the_server(any_url, queue):
    with Queue(any_url, queue) as one:
        one.push_many(list(range(9)))
        one.reserve(2)
        first, after = look(any_url, queue, limit=4)
        second, after = look(any_url, queue, limit=4, after=after)
        third, end = look(any_url, queue, limit=4, after=after)
        assert first + second + third == list(range(9)) and end is None


def test_a_cursor_of_an_earlier_version_reads_on(url, queue):
    with Queue(url, queue) as one:
        ids = one.push_many(list(range(9)))
        moments = [round(message.mature.timestamp() * 1000) for message in one.peek()]
        seen = sum(moment == moments[3] for moment in moments[:4])
        found, after = look(url, queue, limit=3, after=old_cursor(moments[3], ids[3], seen))
        assert found == [4, 5, 6]
        assert look(url, queue, limit=3, after=after) == ([7, 8], None), "with a cursor of this version"
        gone = old_cursor(moments[3], "gone", seen)
        assert look(url, queue, limit=3, after=gone)[0] == [4, 5, 6], "as many as were seen are passed"


def test_a_cursor_of_another_queue_is_refused(url, queue):
    with Queue(url, queue) as one, Queue(url, f"{queue}.other") as other:
        one.push_many(list(range(3)))
        other.push(1)
        _, after = look(url, queue, limit=1)
        with calling(create_app(Settings(graph=Graph({"a": Namespace(url)})))) as http:
            for name, cursor in ((f"{queue}.other", after), (queue, after[:-3]), (queue, f"{after}x")):
                refused = http.get(f"/v1/queues/a/{name}/messages", params={"after": cursor})
                assert refused.status_code == 400 and "parameter 'after'" in refused.json()["detail"], refused.text
