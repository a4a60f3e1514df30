"""The sizes in the progress of a real query."""

from __future__ import annotations

import json

import pytest

from spark_queue import Queue
from tests.spark_session import admission

pytestmark = [pytest.mark.full, admission]


def test_the_progress_of_a_busy_query_is_of_this_second_and_has_its_dead_letters(q):
    q.push([{"n": n} for n in range(80)])
    dead: list[int] = []

    def work(rows, batch):
        with Queue(q.url, f"{q.name}.dead") as letters:
            dead.append(letters.sizes().total)
            letters.push({"batch": batch})
        assert rows.count() == 5

    query = q.run(q.stream(maxRecordsPerTrigger="5"), work)
    query.awaitTermination()
    reports = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress if one["numInputRows"]]
    assert len(reports) == 16 == len(dead)
    assert max(one["sizesAgeMs"] for one in reports) <= 1_000
    for report, letters in zip(reports, dead, strict=True):
        assert report["ready"] + report["reserved"] <= 80 and report["dead"] <= letters
    assert reports[0]["ready"] > reports[-1]["ready"] and reports[-1]["dead"] > 0
