"""A queue is read page by page: by the client, the operations and the command line."""

from __future__ import annotations

import pytest

from spark_queue import Queue, admin
from spark_queue.errors import OptionError
from tests.command_line import Run


@pytest.mark.every_store
def test_the_client_reads_page_by_page(any_url, name):
    with Queue(any_url, name, history=60) as queue:
        queue.push_many(list(range(7)))
        queue.commit(*queue.reserve(2))
        first, after = queue.browse(3)
        second, end = queue.browse(limit=3, after=after)
        assert [one.payload for one in first + second] == [2, 3, 4, 5, 6] and end is None
        assert [one.payload for one in queue.peek(2)] == [2, 3] and queue.peek(0) == []
        page = admin.browse_history(any_url, name, 1)
        more = admin.browse_history(any_url, name, 9, page.after)
        assert {str(one.payload) for one in page.entries + more.entries} == {"0", "1"} and more.after is None
        for wrong in (0, -1, "2"):
            with pytest.raises(OptionError, match="limit"):
                queue.browse(wrong)
        for read in (queue.browse, lambda limit, after: admin.browse_history(any_url, name, limit, after)):
            with pytest.raises(OptionError, match="after: the cursor 'x' is not that of a page"):
                read(3, "x")


def test_the_command_line_prints_the_cursor_of_the_next_page(url, name):
    with Queue(url, name, history=60) as queue:
        queue.push_many(list(range(7)))
        queue.commit(*queue.reserve(3))
    first = Run("peek", url, name, "--limit", 3, "--json")
    assert first.out.count("\n") == 3
    after = first.err.split("--after ")[1].strip()
    second = Run("peek", url, name, "--limit", 3, "--after", after)
    assert second.code == 0 and "--after" not in second.err
    history = Run("history", url, name, "--after", "start", "--limit", 2, "--json")
    assert len(history.json) == 2
    rest = Run("history", url, name, "--after", history.err.split("--after ")[1].strip(), "--json")
    assert len(rest.json) == 1 and "--after" not in rest.err
    assert Run("history", url, name, "--after", "start", "--id", "x").code == 2
    wrong = Run("peek", url, name, "--after", "x")
    assert wrong.code == 2 and "after: the cursor 'x' is not that of a page" in wrong.err
