"""The real rfq, of PyPI and of npm, each run as a child process, with its acts as Python methods."""

from __future__ import annotations

import shutil
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import redis

from spark_queue import Queue, open_store
from spark_queue.options.url import StoreUrl
from spark_queue.stores.redis.lists import RfqStore
from tests.interop.driver import NODE, PATIENCE, Driver, required

PYTHON = Path(__file__).parents[2] / ".venv-peers-rfq" / "bin" / "python"

Which = Literal["backlog", "nextlog"]
Language = Literal["python", "js"]


class Task(NamedTuple):
    """What rfq gives to a worker; of a message that is gone `message` is empty."""

    id: str
    message: dict[str, str]


def unavailable(language: Language) -> str | None:
    """Why that rfq cannot run here and what to do about it; None when it can."""
    if language == "python":
        return None if PYTHON.exists() else f"rfq is not installed: type 'make rfq' ({PYTHON} is missing)"
    if not shutil.which("node"):
        return "node is missing: install Node.js 18 or later (on Debian: apt-get install -y nodejs npm)"
    if not (NODE / "node_modules" / "@robofarm" / "rfq").exists():
        return f"rfq of npm is not installed: npm ci --prefix {NODE}"
    return None


class Rfq(Driver):
    """A process of rfq, of the language that is named; `js` can publish, consume, and end tasks."""

    name = "rfq"

    def __init__(self, url: str, language: Language = "python") -> None:
        self._language: Language = language
        server = StoreUrl.parse(url).url
        if language == "python":
            super().__init__(str(PYTHON), "-I", "rfq_driver.py", server)  # -I: the `rfq` of this folder is another
        else:
            super().__init__("node", "rfq.js", server, cwd=NODE)

    def unavailable(self) -> str | None:
        return unavailable(self._language)

    def publish(self, topic: str, message: dict[str, Any], *, front: bool = False) -> str:
        return str(self._result("publish", topic=topic, message=message, front=front))

    def publish_batch(self, topic: str, messages: list[dict[str, Any]], *, front: bool = False) -> list[str]:
        return list(self._result("publish_batch", topic=topic, messages=messages, front=front))

    def consume(self, topic: str) -> Task:
        """Take the next message; waits for one as long as a driver may."""
        self.send("consume", topic=topic)
        return self.consumed()

    def consumed(self, patience: float = PATIENCE) -> Task:
        """Return the result of a `consume` that was sent."""
        found = self.answer("consume", patience)["result"]
        return Task(found["id"], found["message"] or {})  # of npm: null where the message is gone

    def done(self, id: str) -> str:
        return str(self._result("done", id=id))

    def cancel(self, id: str) -> str:
        return str(self._result("cancel", id=id))

    def published(self, id: str) -> str:
        """When it was published (ISO), of a task that was consumed here."""
        return str(self._result("published", id=id))

    def info(self, topic: str) -> tuple[int, int]:
        backlog, nextlog = self._result("info", topic=topic)
        return backlog, nextlog

    def harvest(self, topic: str) -> list[str]:
        return list(self._result("harvest", topic=topic))

    def listq(self, topic: str, which: Which = "backlog") -> list[str]:
        return list(self._result("listq", topic=topic, which=which))

    def purge(self, topic: str, which: Which = "backlog") -> list[str]:
        return list(self._result("purge", topic=topic, which=which))

    def peek(self, topic: str, id: str) -> dict[str, str]:
        return dict(self._result("peek", topic=topic, id=id))

    def topics(self) -> list[str]:
        return list(self._result("topics"))

    def _result(self, act: str, **given: Any) -> Any:
        return self.do(act, **given)["result"]


class Topic:
    """A topic of one test, and the ways into it."""

    def __init__(self, url, stack):
        self.url, self.name = StoreUrl.parse(url).with_layout("rfq"), f"t{uuid.uuid4().hex}"
        self._clients = stack.enter_context(ExitStack())
        self.store = stack.enter_context(open_store(self.url))
        self.redis = stack.enter_context(redis.Redis.from_url(url, decode_responses=True))

    def opened(self, parameters=""):
        """One more store."""
        store = self._clients.enter_context(open_store(self.url + parameters))
        assert isinstance(store, RfqStore)
        return store

    def ours(self, **options):
        """One more client of ours, closed with the test."""
        return self._clients.enter_context(Queue(self.url, self.name, **options))

    def rfq(self, language="python"):
        """One more process of rfq, ended with the test."""
        required(unavailable(language))
        return self._clients.enter_context(Rfq(self.url, language))

    def leave(self):
        """Close all of them, which writes down what they counted: after a drop it would be there again."""
        self._clients.close()

    def backlog(self):
        return self.redis.lrange(f"rfq:{self.name}:backlog", 0, -1)

    def nextlog(self):
        return self.redis.lrange(f"rfq:{self.name}:nextlog", 0, -1)

    def message(self, id):
        return self.redis.hgetall(f"rfq:{self.name}:message:{id}")

    def sleepers(self):
        """The connections of Redis that wait for an element of a list, as rfq does."""
        return {one["id"] for one in self.redis.client_list() if one["cmd"] == "brpoplpush" and "b" in one["flags"]}

    def contents(self):
        """All that is there, byte for byte, but for what we count; each id replaced by the payload of its message."""
        found: dict[bytes | str, Any] = {}
        names = {}
        with redis.Redis.from_url(self.url.partition("?")[0]) as raw:
            keys = set(raw.scan_iter(match=f"*{self.name}*", count=10_000))
            for key in keys:
                if b":message:" in key:
                    id = key.rpartition(b":")[2]
                    names[id] = repr(list(raw.hgetall(key).items())).encode()
                    found[key.replace(id, names[id])] = (raw.object("encoding", key), names[id])
            for which in ("backlog", "nextlog"):
                key = f"rfq:{self.name}:{which}".encode()
                found[key] = [names.get(id, id) for id in raw.lrange(key, 0, -1)]
            found["keys"] = sorted(
                key for key in keys if b":message:" not in key and not key.startswith(b"keuss:stats:")
            )
        return found


@contextmanager
def sharing(redis_url):
    """A topic of this test's own, of which nothing is left at the end."""
    with ExitStack() as stack:
        topic = Topic(redis_url, stack)
        yield topic
        topic.leave()
        for name in {topic.name, *topic.store.queues()}:
            if name.startswith(topic.name):
                topic.store.drop(name)
        left = topic.redis.scan_iter(match=f"*{topic.name}*", count=10_000)
        assert [key for key in left if ":staged:" not in key] == [], "a drop leaves nothing"
