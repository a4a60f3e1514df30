"""What one message costs: few statements, and none that reads the other messages of its lease."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from spark_queue import Queue

#: The statements of a transaction that are the same for all of them.
FRAME = ("PRAGMA", "BEGIN", "COMMIT")


@pytest.fixture
def queue(sqlite_url):
    with Queue(sqlite_url, "q", max_tries=9) as opened:
        opened.push_many(range(300))
        yield opened


@contextmanager
def traced(queue):
    """The statements that are executed meanwhile, with their values."""
    found = []
    with queue.store._connection.use() as db:
        db.set_trace_callback(found.append)
    try:
        yield found
    finally:
        with queue.store._connection.use() as db:
            db.set_trace_callback(None)


def plan(queue, statement):
    with queue.store._connection.use() as db:
        return " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}"))


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_iteration_settles_and_hands_out_with_few_statements(queue, outcome):
    messages = queue.messages(timeout=0, prefetch=200)
    settle = getattr(queue, outcome)
    settle(next(messages))
    current = next(messages)
    with traced(queue) as found:
        settle(current)
        next(messages)
    steps = [one for one in found if not one.startswith(FRAME)]
    assert len(steps) <= (4 if outcome == "commit" else 5), steps  # a rollback asks for the time
    changes = [one for one in steps if "message SET" in one or "FROM message WHERE queue" in one]
    assert len(changes) == 2
    assert all("message_id (queue=? AND id=?)" in plan(queue, one) for one in changes)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_settlement_by_id_reads_no_other_message_of_its_lease(queue, outcome, many):
    held = queue.reserve(200)
    with traced(queue) as found:
        getattr(queue, outcome)(*held[10 : 15 if many else 11])
    (change,) = [one for one in found if one.startswith(("DELETE FROM message", "UPDATE message SET lease"))]
    assert "message_id (queue=? AND id=?)" in plan(queue, change), change
