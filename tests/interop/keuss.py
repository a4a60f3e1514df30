"""The real keuss (npm), run by node as a child process, with its acts as Python methods."""

from __future__ import annotations

import base64
import shutil
from dataclasses import dataclass
from typing import Any, Literal

from spark_queue import Queue
from spark_queue.messages.message import Message
from spark_queue.options.url import StoreUrl
from tests.interop.driver import NODE, PATIENCE, Driver

LARGE = 2**40 + 1

#: What both sides can say. keuss keeps integers beyond 32 bits as doubles in MongoDB, and so does JavaScript.
PAYLOADS = [
    {"flight": 1545, "to": {"airport": "IAH", "gates": [1, "C", None, True]}},
    {},
    [1, 2.5, "three", None, [], {"four": 4}],
    [],
    'ünï "quoted" \\ / \n 航班 ✈',
    "",
    '{"not": "an object"}',
    7,
    0,
    -12,
    LARGE,
    -LARGE,
    2**53 - 1,
    2.5,
    -1e-7,
    True,
    {"n": LARGE, "f": 0.1, "neg": -3},
    b"\x00\xff binary \x80",
    b"",
]

Backend = Literal[
    "mongo", "ps-mongo", "pl-mongo", "bucket-mongo-safe", "intraorder", "stream-mongo", "redis-oq", "redis-list"
]
Carrier = Literal["mongo-capped", "redis-pubsub"]


@dataclass(frozen=True)
class KeussMessage:
    """A message as keuss shows it: `tries` is the value before this reserve, `mature` is in ms since 1970."""

    id: str
    payload: Any  # what JSON can say, or bytes where keuss gives a Buffer
    hdrs: dict[str, Any] | None
    tries: int
    mature: int


def unavailable() -> str | None:
    """Why keuss cannot run here and what to do about it; None when it can."""
    if not shutil.which("node"):
        return "node is missing: install Node.js 18 or later (on Debian: apt-get install -y nodejs npm)"
    if not (NODE / "node_modules" / "keuss").exists():
        return f"keuss is not installed: npm ci --prefix {NODE}"
    return None


class Keuss(Driver):
    """One queue of keuss, open as long as the `with` block.

    with Keuss("redis-oq", url, "departures") as keuss:
        keuss.push({"flight": 1545})
    """

    name = "keuss"

    def __init__(
        self,
        backend: Backend,
        url: str,
        queue: str,
        *,
        stats: bool | str = False,
        signals: tuple[Carrier, str] | None = None,
        exact: bool = False,
    ) -> None:
        """`stats`: statistics lie beside the queue, or in the MongoDB database of a URL, not in its memory.

        `signals`: what carries them, and the URL of the queues, or (`exact`) their own.
        """
        super().__init__("node", "driver.js", cwd=NODE)
        self._opening: dict[str, Any] = {
            "backend": backend,
            "url": StoreUrl.parse(url).url,
            "queue": queue,
            "stats": stats,
        }
        if signals is not None:
            self._opening["signals"] = {"kind": signals[0], "url": StoreUrl.parse(signals[1]).url, "exact": exact}

    def unavailable(self) -> str | None:
        return unavailable()

    def begin(self) -> None:
        self.do("open", **self._opening)

    def push(
        self,
        payload: Any,
        *,
        hdrs: dict[str, Any] | None = None,
        delay: float | None = None,
        mature: float | None = None,
        tries: int | None = None,
    ) -> str:
        """Push JSON, or bytes as a Buffer; `delay` in s, `mature` in s since 1970. Answers the id."""
        if isinstance(payload, bytes):
            body = {"payload_b64": base64.b64encode(payload).decode()}
        else:
            body = {"payload": payload}
        options = {"hdrs": hdrs, "delay": delay, "mature": mature, "tries": tries}
        given = {name: value for name, value in options.items() if value is not None}
        return str(self.do("push", **body, **given)["id"])

    def pop(self, timeout: float = 60) -> KeussMessage | None:
        """Take and remove the next message; None when nothing comes within `timeout` s.

        After one that returned None it may still take one, and lose it: see `get`.
        """
        return self._take("pop", timeout)

    def get(self) -> KeussMessage | None:
        """Take and remove the next message as `pop` does, without waiting for one: None when nothing is ready."""
        return self._message(self.do("get")["message"])

    def reserve(self, timeout: float = 60) -> KeussMessage | None:
        """Take the next message and hold it; None when nothing comes within `timeout` s."""
        return self._take("reserve", timeout)

    def ok(self, message_id: str) -> bool:
        """Commit what is reserved; False when nothing of that id is."""
        return bool(self.do("ok", id=message_id)["result"])

    def ko(self, message_id: str, next_t: int | None = None) -> bool:
        """Give back what is reserved, to be taken again now or at `next_t` (ms since 1970)."""
        return bool(self.do("ko", id=message_id, next_t=next_t)["result"])

    def link(self, kind: str, dst: list[str], work: str, **opts: Any) -> None:
        """Run a link on this queue: `work` is the text of a function (elem, done) of JavaScript."""
        self.do("link", kind=kind, dst=dst, work=work, opts=opts)

    def link_errors(self) -> list[str]:
        """Return where the link met errors so far."""
        return list(self.do("linkErrors")["result"])

    def unlink(self) -> list[str]:
        """End it, and return where it met errors."""
        return list(self.do("unlink")["result"])

    def remove(self, message_id: str) -> bool:
        """Remove a message that is not reserved; return False if there is none of that id."""
        return bool(self.do("remove", id=message_id)["result"])

    def size(self) -> int:
        """Messages that may be taken now."""
        return int(self.do("size")["result"])

    def total_size(self) -> int:
        """Messages of the queue, whatever their state."""
        return int(self.do("totalSize")["result"])

    def sched_size(self) -> int:
        """Messages not mature yet; on redis-oq, those reserved too."""
        return int(self.do("schedSize")["result"])

    def resv_size(self) -> int | None:
        """Messages reserved; None on redis-oq, which does not know."""
        result = self.do("resvSize")["result"]
        return None if result is None else int(result)

    def stats(self) -> dict[str, int]:
        """What was counted of the queue, as far as it is written."""
        return dict(self.do("stats")["result"])

    def pause(self, value: bool = True) -> None:
        """Pause the queue, or let it go on."""
        self.do("pause", value=value)

    def paused(self) -> bool:
        """Whether the statistics have it as paused."""
        return bool(self.do("paused")["result"])

    def heard(self) -> bool | None:
        """Whether it takes the queue for paused, by its last read or signal; None if it knows nothing."""
        return self.do("heard")["result"]

    def list(self) -> dict[str, Any]:
        """What the factory knows of all its queues, by name."""
        return dict(self.do("list", full=True)["result"])

    def _take(self, act: str, timeout: float) -> KeussMessage | None:
        return self._message(self.do(act, timeout=int(timeout * 1000), patience=PATIENCE + timeout)["message"])

    @staticmethod
    def _message(found: dict[str, Any] | None) -> KeussMessage | None:
        if found is None:
            return None
        is_buffer = found.get("type") == "buffer"
        payload = base64.b64decode(found["payload_b64"]) if is_buffer else found.get("payload")
        return KeussMessage(found["id"], payload, found.get("hdrs"), found["tries"], found["mature"])


def same(got: Any, payload: Any) -> bool:
    """Return whether both are equal, and of the same kind: 1 is not True."""
    return bool(got == payload) and (isinstance(got, bool), isinstance(got, bytes)) == (
        isinstance(payload, bool),
        isinstance(payload, bytes),
    )


def everything(ours: Queue, n: int) -> list[Message]:
    """Return the next `n` messages; keuss writes a bucket a moment after the first push into it."""
    taken: list[Message] = []
    while len(taken) < n:
        some = ours.reserve(n - len(taken), timeout=60)
        assert some, f"{n - len(taken)} of {n} are missing"
        taken += some
    return taken


def documents(shared: Any) -> list[dict[str, Any]]:
    """Return what lies in the collection of a queue that is shared."""
    return list(shared.store._queue_view(shared.name).find({}).sort("_id", 1))
