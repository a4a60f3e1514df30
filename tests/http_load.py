"""Many callers of a server at once, and what they came to: nothing is lost, and none gets what another holds.

A client that does little besides calling: what is measured is the server.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import orjson

JSON = {"content-type": "application/json"}


class Caller:
    """One connection, kept alive."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._tls = None
        if urlsplit(url).scheme == "https":  # of a test: its certificate is not checked
            self._tls = ssl.create_default_context()
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body. Raises `OSError` and `EOFError` where the connection breaks."""
        if self._stream is None:
            self._stream = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        reader, writer = self._stream
        fields = {"host": f"{self._host}:{self._port}", "content-length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()[:-1]
            got = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            answer = await reader.readexactly(int(got["content-length"])) if "content-length" in got else b""
            if got.get("transfer-encoding") == "chunked":  # as Node.js sends
                while size := int(await reader.readline(), 16):
                    answer += (await reader.readexactly(size + 2))[:-2]
                await reader.readline()
        except (OSError, EOFError):
            self.close()
            raise
        return int(first.split()[1]), got, answer

    def close(self) -> None:
        if self._stream is not None:
            self._stream[1].close()
        self._stream = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        stream = self._stream
        self.close()
        if stream is not None:
            with suppress(OSError):
                await stream[1].wait_closed()


@dataclass
class Tally:
    """What all callers together came to."""

    pushed: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)  #: pushed again, perhaps after the first was committed
    wrong: list[str] = field(default_factory=list)
    calls: int = 0
    broken: int = 0

    def take(self, id: str, dying: bool) -> None:
        """Count a message that a client got."""
        if id in self.committed and id not in self.repeated:
            self.wrong.append(f"{id} was committed, and came again")
        if id in self.held and not dying:
            self.wrong.append(f"{id} came to two callers")
        self.held.add(id)
        self.received.add(id)


async def load(
    url: str,
    paths: Sequence[str],
    clients: int,
    seconds: float = math.inf,
    *,
    enough: Callable[[Tally], object] = lambda tally: False,
    dying: bool = False,
    seed: int = 7,
) -> Tally:
    """Let clients push, reserve, commit and roll back for some time, or until it is enough; take what is left.

    `paths`: the queues, which the clients share out. `dying`: the server may die and come again; a call that broke
    is made again, by the next client if it was a reservation.
    """
    tally, number = Tally(), itertools.count()
    end = time.monotonic() + seconds

    async def work(who: int) -> None:
        chance, path = random.Random(seed * 1000 + who), paths[who % len(paths)]
        own = path.replace("/q/", "/v1/queues/", 1)
        async with Caller(url) as caller:

            async def call(method: str, path: str, value: object = None) -> tuple[int, dict[str, str], bytes]:
                while True:
                    tally.calls += 1
                    try:
                        body = b"" if value is None else orjson.dumps(value)
                        answer = await caller.call(method, path, body, JSON)
                    except (OSError, EOFError) as error:
                        if not dying:
                            tally.wrong.append(f"{method} {path}: {error!r}")
                            raise
                        tally.broken += 1
                        if method in ("PUT", "POST"):
                            tally.repeated.update(ids)
                        await asyncio.sleep(0.05)
                        continue
                    if answer[0] >= 500 and answer[0] != 504:
                        if not dying or answer[0] != 503:
                            tally.wrong.append(f"{method} {path}: {answer[0]} {answer[2][:200]!r}")
                            return answer
                        continue
                    return answer

            def expect(answer: tuple[int, dict[str, str], bytes], *good: int) -> bool:
                if answer[0] not in good:
                    tally.wrong.append(f"{answer[0]} {answer[2][:200]!r}")
                return answer[0] == good[0]

            def leave(ids: list[str], committed: bool) -> None:
                tally.held.difference_update(ids)
                if committed:
                    tally.committed.update(ids)

            async def settle(receipts: list[str], ids: list[str], *, commit: bool) -> None:
                if not commit:
                    leave(ids, False)
                act = "commit" if commit else "rollback"
                if len(receipts) == 1:
                    answer = await call("PATCH", f"{path}/{act}/{receipts[0]}")
                    done = expect(answer, 200, *([404] if dying else []))
                else:
                    answer = await call("POST", f"{own}/{act}", {"receipts": receipts})
                    done = expect(answer, 200) and (not commit or orjson.loads(answer[2])["committed"] == len(ids))
                    if not done and not dying:
                        tally.wrong.append(f"not all were held: {answer[2]!r}")
                if commit:
                    leave(ids, done)

            while time.monotonic() < end and not enough(tally):
                if chance.random() < 0.3:
                    ids = [f"{who}-{next(number)}" for _ in range(chance.randint(2, 8))]
                    answer = await call("POST", f"{own}/messages", [{"id": id, "payload": id} for id in ids])
                else:
                    ids = [f"{who}-{next(number)}"]
                    answer = await call("PUT", f"{path}?id={ids[0]}", ids[0])
                if expect(answer, 200):
                    tally.pushed.update(ids)
                if chance.random() < 0.3:
                    answer = await call("POST", f"{own}/reserve", {"limit": 5} | ({"lease": "2s"} if dying else {}))
                    if expect(answer, 200) and (messages := orjson.loads(answer[2])["messages"]):
                        ids = [one["id"] for one in messages]
                        for id in ids:
                            tally.take(id, dying)
                        await settle([one["receipt"] for one in messages], ids, commit=chance.random() < 0.9)
                else:
                    answer = await call("GET", f"{path}?reserve=1&to=20{'&lease=2000' if dying else ''}")
                    if expect(answer, 200, 504):
                        id = answer[1]["x-ks-id"]
                        tally.take(id, dying)
                        await settle([answer[1]["x-ks-receipt"]], [id], commit=chance.random() < 0.9)

    await asyncio.gather(*(work(who) for who in range(clients)))
    async with Caller(url) as caller:
        for path in paths:
            own = path.replace("/q/", "/v1/queues/", 1)
            patience = time.monotonic() + (60 if dying else 0)
            while True:
                tally.calls += 1
                _, _, answer = await caller.call("POST", f"{own}/reserve", b'{"limit": 1000, "wait": "100ms"}', JSON)
                taken = orjson.loads(answer)
                for one in taken["messages"]:
                    tally.take(one["id"], dying)
                if taken["messages"]:
                    await caller.call("POST", f"{own}/commit", orjson.dumps({"receipts": [taken["receipt"]]}), JSON)
                else:
                    left = orjson.loads((await caller.call("GET", f"{path}/status"))[2])
                    if not left["totalSize"] or time.monotonic() > patience:
                        break
    tally.wrong += [f"{id} was lost" for id in sorted(tally.pushed - tally.received)]
    return tally
