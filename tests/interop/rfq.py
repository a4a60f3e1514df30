"""The real rfq, of PyPI and of npm, each run as a child process, with its acts as Python methods."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spark_queue.address import Address
from tests.interop.driver import NODE, Driver

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
        server = Address.of(url).url
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
        self.tell("consume", topic=topic)
        return self.consumed()

    def consumed(self, patience: float = 30) -> Task:
        """What a `consume` gives that was told."""
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
