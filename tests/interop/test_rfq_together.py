"""rfq and spark_queue at work on one queue at the same time."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter

import pytest

from spark_queue.spark import drain
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.redis.lists import published_at

pytestmark = [pytest.mark.interop, pytest.mark.full]  # test_smoke.py is what `make test` runs of it

# --- together -------------------------------------------------------------------------------------


def test_workers_of_all_kinds_drain_one_topic_and_each_message_comes_once(topic):
    seen, by, lock, errors = Counter(), Counter(), threading.Lock(), []
    pushed, ended = itertools.count(300), threading.Event()
    publishers = [topic.rfq(), topic.rfq("js")]
    ours = topic.ours()

    def note(who, n):
        with lock:
            seen[n] += 1
            by[who] += 1

    def work(who, rfq):
        while True:
            task = rfq.consume(topic.name)
            rfq.done(task.id)
            if "n" not in task.message:
                return
            note(who, int(task.message["n"]))

    def client(who, queue):
        while not ended.is_set():
            batch = queue.reserve(3, timeout=0.2)
            if queue.commit(*batch) != len(batch):
                errors.append(f"we lost some of {batch}")
            for one in batch:
                note(who, int(one.payload["n"]))
            time.sleep(0.002)

    workers = [("python", topic.rfq()), ("js", topic.rfq("js")), ("python 2", topic.rfq())]
    threads = [threading.Thread(target=work, args=one) for one in workers]
    clients = [threading.Thread(target=client, args=(f"client {n}", topic.ours())) for n in (1, 2)]
    ours.push_many([{"n": n} for n in range(300)])
    for thread in clients + threads:
        thread.start()

    def one_more():
        n = next(pushed)
        if n % 3 < 2:
            publishers[n % 3].publish(topic.name, {"n": str(n)}, front=n % 7 == 0)
        else:
            ours.push({"n": n})
        return n >= 599 and set(by) == {"python", "js", "python 2", "client 1", "client 2"}

    wait_until(one_more, description="that all have a share", pause=0)
    total = next(pushed)
    wait_until(lambda: seen.total() >= total, description="the last message")
    ended.set()
    for thread in clients:
        thread.join()
    ours.push_many([{"end": "1"}] * len(workers))
    for thread in threads:
        thread.join()
    assert errors == []
    assert seen == Counter(range(total))
    assert topic.contents()["keys"] == []
    assert topic.store.lost(topic.name) == 0


# --- Spark ----------------------------------------------------------------------------------------


def test_spark_drains_what_rfq_published_and_answers_rfq(topic, rfq, spark, tmp_path):
    answers, rows = f"{topic.name}.answers", []
    sent = dict(
        zip(rfq.publish_batch(topic.name, [{"n": str(n), "text": "ü"} for n in range(50)]), range(50), strict=True)
    )
    front = rfq.publish(topic.name, {"n": "front"}, front=True)

    def answer(df, batch_id):
        rows.extend(df.collect())
        (
            df.selectExpr("id AS of", "2 * try_cast(get_json_object(payload, '$.n') AS INT) AS double")
            .where("double IS NOT NULL").selectExpr("struct(of, double) AS payload")
            .write.format("queue").mode("append").options(url=topic.url, queue=answers).save()
        )  # fmt: skip

    query = (
        spark.readStream.format("queue").option("url", topic.url).option("queue", topic.name).load()
        .writeStream.foreachBatch(answer).option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    drain(query, topic.url)
    assert len(rows) == 51 and {row.id for row in rows} == {*sent, front}
    assert {row.id: json.loads(row.payload)["n"] for row in rows} == {
        **{id: str(n) for id, n in sent.items()}, front: "front",
    }  # fmt: skip
    assert rfq.info(topic.name) == (0, 0)
    assert topic.redis.exists(f"rfq:{topic.name}:nextlog") == 0
    assert rfq.info(answers) == (50, 0)
    got = [rfq.consume(answers) for _ in range(50)]
    assert {task.message["of"]: int(task.message["double"]) for task in got} == {id: 2 * n for id, n in sent.items()}
    assert all(published_at(task.id) for task in got)
