"""Each class of calls has limits of its own: whose turn it is, what a look may read, which route is in which."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from starlette.routing import Mount, Route

from spark_queue import Queue
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings, create_app, lane_threads
from spark_queue.rest.errors import Overloaded
from spark_queue.rest.gate import Gate
from spark_queue.rest.guard.caller import CallerKey
from spark_queue.rest.lanes import Lane, LaneLimits, lane_of
from spark_queue.rest.looks import contents
from spark_queue.rest.routes import CheckedRoute
from spark_queue.rest.waiters import WaitList
from tests.http_load import Caller
from tests.rest.in_process import calling

#: Pages and files that FastAPI serves itself, from memory or from an installed package.
PAGES = {"/openapi.json", "/docs", "/docs/static", "/redoc", "/docs/oauth2-redirect"}

ANN, BEN = CallerKey(b"ann", "10.0.0.1"), CallerKey(b"ben", "10.0.0.2")


@pytest.fixture
def settings(tmp_path):
    return Settings(graph=Graph({"a": Namespace(f"sqlite:///{tmp_path}/q.db")}))


def test_every_route_has_a_lane(settings):
    app = create_app(settings)
    for route in app.routes:
        if isinstance(route, CheckedRoute):
            assert isinstance(lane_of(route.endpoint), Lane), route.path
            viewable = getattr(route.endpoint, "viewable", False)
            if viewable:
                assert lane_of(route.endpoint) in (Lane.LOOK, Lane.METRICS, Lane.LOCAL), route.path
            if lane_of(route.endpoint) is Lane.LOOK:
                assert viewable and route.methods == {"GET"}, route.path
        else:
            assert isinstance(route, Route | Mount)
            assert route.path in PAGES, route.path
    app.state.service.close()


def test_a_handler_without_a_lane_is_refused(settings):
    from spark_queue.rest.routes import router

    async def handler() -> None: ...

    with pytest.raises(TypeError, match="declares no lane"):
        router("x").get("/x")(handler)


# --- turns ----------------------------------------------------------------------------------------


def gate(running=1, of_one=1, waiting=100, waiting_of_one=50, patience=30.0):
    return Gate("look", LaneLimits(running, of_one, waiting, waiting_of_one, patience))


def test_callers_take_turns():
    async def act():
        one, order = gate(), []

        async def call(who, name):
            await one.enter(who)
            order.append(name)
            await asyncio.sleep(0)
            one.leave(who)

        calls = [call(ANN, f"ann {n}") for n in range(4)] + [
            call(BEN, "ben"),
            call(CallerKey(b"ann", "x"), "ann at x"),
        ]
        await asyncio.gather(*calls)
        return order

    order = asyncio.run(act())
    assert order[0] == "ann 0" and order.index("ben") <= 2 and order.index("ann at x") <= 3
    assert len(order) == 6


def test_one_caller_does_not_take_all_places():
    async def act():
        one = gate(running=3, of_one=2, waiting_of_one=2)
        for _ in range(2):
            await one.enter(ANN)
        waiting = [asyncio.ensure_future(one.enter(ANN)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="too many calls"):
            await one.enter(ANN)
        await asyncio.wait_for(one.enter(BEN), 1)
        one.leave(ANN)
        await asyncio.wait_for(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED), 1)
        for who in (ANN, ANN, BEN):
            one.leave(who)
        await asyncio.gather(*waiting)
        one.leave(ANN)
        return one

    left = asyncio.run(act())
    assert not left._running_of and not left._waiting_of and not left._turns


def test_a_turn_that_does_not_come_is_refused_and_a_cancelled_one_leaves_nothing():
    async def act():
        one = gate(patience=0.05)
        await one.enter(ANN)
        with pytest.raises(Overloaded, match="took longer than"):
            await one.enter(BEN)
        gone = asyncio.ensure_future(one.enter(BEN))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        one.leave(ANN)
        return one

    left = asyncio.run(act())
    assert not left._running_of and not left._waiting_of and not left._turns


def test_requests_that_wait_have_a_limit():
    waits = WaitList(most_of_one=2)
    with waits.place(ANN), waits.place(ANN):
        with pytest.raises(Overloaded, match="at most 2 of one caller"), waits.place(ANN):
            pass
        with waits.place(BEN):
            pass
    with waits.place(ANN):
        pass


# --- what a look may read -------------------------------------------------------------------------


def limit_looks(monkeypatch, records, size, seconds):
    monkeypatch.setattr(contents, "LOOK_BUDGET", (records, size, seconds))  # a decorator's budget


@pytest.mark.every_store
def test_a_look_that_would_read_too_much_is_refused_with_a_reason(any_url, queue, monkeypatch):
    limit_looks(monkeypatch, 50, 100_000, 5.0)
    monkeypatch.setattr(lane_threads, "REFUSAL_PAUSE", 0.0)  # of the server's threads
    with Queue(any_url, queue) as one:
        one.push_many(list(range(80)))
        one.push_many(["x" * 20_000] * 10)
    app = create_app(Settings(graph=Graph({"a": Namespace(any_url)})))
    with calling(app) as http:
        path = f"/v1/queues/a/{queue}/messages"
        found = http.get(path, params={"limit": 20})
        assert found.status_code == 200 and len(found.json()["messages"]) == 20
        for wanted, reason in ((70, "50 records"), (90, "")):
            refused = http.get(path, params={"limit": wanted})
            assert refused.status_code == 503 and reason in refused.json()["detail"], refused.text
            assert refused.json()["title"] == "BudgetExceeded" and "retry-after" in refused.headers
        limit_looks(monkeypatch, 500, 100_000, 5.0)
        refused = http.get(path, params={"limit": 90})
        assert refused.status_code == 503 and "100,000 bytes" in refused.json()["detail"]
        assert http.request("PUT", f"/q/a/{queue}", content=b"1").status_code == 200
        limit_looks(monkeypatch, 500, 100_000, -1.0)
        for look in (path, f"/v1/queues/a/{queue}", "/v1/queues", "/q/a", f"/q/a/{queue}/status"):
            refused = http.get(look)
            assert refused.status_code == 503 and "took more than" in refused.json()["detail"], look


@pytest.mark.every_store
def test_a_filtered_look_ends_in_time_however_many_messages_there_are(any_url, queue, monkeypatch):
    """Its filter matches none, so the store would examine them all."""
    limit_looks(monkeypatch, 1_000, 32 << 20, 1.0)
    with Queue(any_url, queue) as one:
        one.push_many(list(range(3_000)))
    app = create_app(Settings(graph=Graph({"a": Namespace(any_url)})))
    with calling(app) as http:
        began = time.monotonic()
        found = http.get(f"/v1/queues/a/{queue}/messages", params={"min_tries": 5})
        assert time.monotonic() - began < 20
        # A database that filters by itself answers; one that does not is not asked for its whole index.
        assert found.status_code == 503 or found.json() == {"messages": [], "after": None}
        assert found.status_code == 503 or not any_url.startswith("redis")


# --- waits ----------------------------------------------------------------------------------------


def test_no_thread_waits_for_a_queue_and_a_message_comes_in_time(server, ns, queue):
    """One caller waits for 300 queues; a thread for each would be 300."""

    def threads():
        with open(f"/proc/{server.process.pid}/status") as status:
            return int(status.read().partition("Threads:")[2].split()[0])

    async def wait_for(caller, name):
        return (await caller.call("GET", f"/q/{ns}/{name}?to=60000&tid={name}"))[0]

    async def begun(caller, *names):
        for name in names:
            while (await caller.call("GET", f"/q/{ns}/{name}/consumers"))[2] == b"[]":
                await asyncio.sleep(0.01)

    async def act():
        async with AsyncExitStack() as stack:
            names = [f"{queue}{n}" for n in range(300)]
            callers = [await stack.enter_async_context(Caller(server.url)) for _ in names]
            waits = [asyncio.ensure_future(wait_for(one, name)) for one, name in zip(callers, names, strict=True)]
            pushing, mine = Caller(server.url), Caller(server.url)
            async with pushing, mine:
                await begun(pushing, *names)
                late = []
                for _ in range(5):
                    waiting = asyncio.ensure_future(wait_for(mine, queue))
                    await begun(pushing, queue)
                    began = time.monotonic()
                    await pushing.call("PUT", f"/q/{ns}/{queue}", b"1")
                    assert await waiting == 200
                    late.append(time.monotonic() - began)
                running = threads()
                for name in names:
                    await pushing.call("DELETE", f"/q/{ns}/{name}/consumer/{name}")
            assert set(await asyncio.gather(*waits)) == {410}
            return running, sorted(late)

    running, late = asyncio.run(act())
    assert running < 200 and late[2] < 1
