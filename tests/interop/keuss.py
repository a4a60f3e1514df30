"""The real keuss (npm), run by node as a child process, with its acts as Python methods."""

from __future__ import annotations

import base64
import json
import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

DRIVER = Path(__file__).with_name("keuss_driver")
PATIENCE = 30  # s for an answer; what cannot be reached is retried by keuss for ever

Backend = Literal["mongo", "redis-oq"]


class KeussError(Exception):
    """keuss refused a command, or died."""


@dataclass(frozen=True)
class KeussMessage:
    """A message as keuss shows it: `tries` is the value before this reserve, `mature` is in ms since 1970."""

    id: str
    payload: Any  # what JSON can say, or bytes where keuss gives a Buffer
    hdrs: dict[str, Any]
    tries: int
    mature: int


def unavailable() -> str | None:
    """Why keuss cannot run here and what to do about it; None when it can."""
    if not shutil.which("node"):
        return "node is missing: install Node.js 18 or later (on Debian: apt-get install -y nodejs npm)"
    if not (DRIVER / "node_modules" / "keuss").exists():
        return f"keuss is not installed: npm ci --prefix {DRIVER}"
    return None


class Keuss:
    """One queue of keuss, open as long as the `with` block.

    with Keuss("redis-oq", url, "departures") as keuss:
        keuss.push({"flight": 1545})
    """

    def __init__(self, backend: Backend, url: str, queue: str) -> None:
        self._opening = {"backend": backend, "url": url, "queue": queue}

    def __enter__(self) -> Keuss:
        if reason := unavailable():
            raise KeussError(reason)
        self._node = subprocess.Popen(
            ["node", "driver.js"], cwd=DRIVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._do("open", **self._opening)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

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
        return str(self._do("push", **body, **given)["id"])

    def pop(self, timeout: float = 1) -> KeussMessage | None:
        """Take and remove the next message; None when nothing comes within `timeout` s."""
        return self._take("pop", timeout)

    def reserve(self, timeout: float = 1) -> KeussMessage | None:
        """Take the next message and hold it; None when nothing comes within `timeout` s."""
        return self._take("reserve", timeout)

    def ok(self, message_id: str) -> bool:
        """Commit what is reserved; False when nothing of that id is."""
        return bool(self._do("ok", id=message_id)["result"])

    def ko(self, message_id: str, next_t: int | None = None) -> bool:
        """Give back what is reserved, to be taken again now or at `next_t` (ms since 1970)."""
        return bool(self._do("ko", id=message_id, next_t=next_t)["result"])

    def size(self) -> int:
        """Messages that may be taken now."""
        return int(self._do("size")["result"])

    def total_size(self) -> int:
        """Messages of the queue, whatever their state."""
        return int(self._do("totalSize")["result"])

    def sched_size(self) -> int:
        """Messages not mature yet; on redis-oq, those reserved too."""
        return int(self._do("schedSize")["result"])

    def resv_size(self) -> int | None:
        """Messages reserved; None on redis-oq, which does not know."""
        result = self._do("resvSize")["result"]
        return None if result is None else int(result)

    def _take(self, act: str, timeout: float) -> KeussMessage | None:
        found = self._do(act, timeout=int(timeout * 1000))["message"]
        if found is None:
            return None
        is_buffer = found.get("type") == "buffer"
        payload = base64.b64decode(found["payload_b64"]) if is_buffer else found.get("payload")
        return KeussMessage(found["id"], payload, found["hdrs"], found["tries"], found["mature"])

    def _do(self, act: str, **given: Any) -> dict[str, Any]:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps({"do": act, **given}).encode() + b"\n")
        self._node.stdin.flush()
        patience = PATIENCE + given.get("timeout", 0) / 1000
        # Commands and answers alternate, so that the pipe holds at most this one answer.
        if not select.select([self._node.stdout], [], [], patience)[0]:
            raise KeussError(f"no answer to {act!r} within {patience:g} s")
        line = self._node.stdout.readline()
        if not line:
            raise KeussError(f"keuss ended at {act!r} with exit code {self._node.wait()}; see its stderr")
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise KeussError(f"{act}: {answer['error']}")
        return answer

    def _end(self) -> None:
        """Closing its stdin makes the driver close its connections and exit; one that hangs is killed."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        try:
            self._node.stdin.close()
            self._node.wait(5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._node.kill()
            self._node.wait()
        finally:
            self._node.stdout.close()
