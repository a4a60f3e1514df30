"""Neither plans of Spark nor what it says of a failure show a password."""

from __future__ import annotations

import json
import traceback

import pytest
from pyspark.sql import functions as F

PASSWORD = "Zqx7Kd"


@pytest.fixture
def refused_url(redis_url):
    """The URL of a server that refuses the password."""
    return redis_url.replace("redis://", f"redis://me:{PASSWORD}@")


def shown(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011  of whatever kind Spark makes it
        call()
    return "".join(traceback.format_exception(caught.value))


def test_no_plan_and_no_failure_shows_a_password(spark, refused_url, tmp_path, capsys):
    one = {"url": refused_url, "queue": "q", "retryTimeout": "1s"}
    read = spark.read.format("queue").options(**one, failIfMissing="false").load()
    stream = spark.readStream.format("queue").options(**one).load()
    for frame in (read, stream):
        frame.explain("extended")
    rows = spark.range(1).select(F.lit("1").alias("payload"), F.lit("a").alias("ns"))
    several = rows.write.format("queue").options(urls=json.dumps({"a": refused_url}), queue="q")
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))

    def run():
        query = writer.start()
        try:
            query.awaitTermination(60)
        finally:
            query.explain(extended=True)
            print(query.status, query.recentProgress, query.exception())
            query.stop()

    said = [
        shown(read.collect),
        shown(rows.drop("ns").write.format("queue").options(**one).mode("append").save),
        shown(several.mode("append").save),
        shown(run),
    ]
    assert all("***" in text for text in said), said
    assert PASSWORD not in "".join(said)
    printed = capsys.readouterr().out
    assert "Physical Plan" in printed and PASSWORD not in printed
