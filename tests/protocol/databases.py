"""A sink of several databases: each has stages and a ledger, and one decision holds for all.

Each run of a batch has other rows in each database: message n goes to database n + run. In `State.ledgers` and
`Stage.key`, databases stand where queries do otherwise; a world with several has one query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.protocol.rules import Rules
from tests.protocol.state import REFUSED, Driver, Ledger, Moves, Stage, State, Step, World


def share(rows: frozenset[int], attempt: int, database: int, world: World) -> frozenset[int]:
    """Return the rows of one database in an attempt."""
    return frozenset(n for n in rows if (n + attempt) % world.databases == database)


def _next(driver: Driver, world: World, then: str, *, first: str = "") -> Driver:
    """Return the process before `first`, or this step, in the next database; before `then` behind the last one."""
    if driver.queue + 1 < world.databases:
        return driver._replace(step=first or driver.step, queue=driver.queue + 1)
    return driver._replace(step=then, queue=0)


def _decision(state: State) -> Ledger:
    """Return the newest decision."""
    return max(state.ledgers, key=lambda one: one.batch)


def stage(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    newest = max(one.batch for one in state.ledgers)
    if not newest <= driver.batch <= newest + 1:
        yield REFUSED + ": the sink is at another batch", state.with_driver(place, None)
        return
    decided = newest == driver.batch
    if decided and rules.anywhere and not driver.queue:
        yield "skips what is written", state.with_driver(place, driver._replace(step="take"))
        return
    attempt = driver.attempt
    if not driver.queue:
        used = {one.attempt for one in state.stages if one.batch == driver.batch}
        used |= {one.attempt for one in state.ledgers if one.batch == driver.batch}
        used |= {one.attempt for one in state.drivers if one and one.batch == driver.batch}
        attempt = next(n for n in range(9) if n not in used)
    rows = share(driver.rows, attempt, driver.queue, world)
    after = _next(driver._replace(attempt=attempt), world, "complete")
    if state.ledgers[driver.queue].batch == driver.batch and not rules.anywhere:
        rows = frozenset()
    made = {Stage(driver.queue, driver.batch, attempt, rows)} if rows else set()
    staged = state._replace(stages=state.stages | made).with_driver(place, after)
    yield f"stages batch {driver.batch} in database {driver.queue}", staged


def complete(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """What was decided before is in all databases, before something new is decided."""
    last, here = _decision(state), state.ledgers[driver.queue]
    after = state.with_driver(place, _next(driver, world, "decide"))
    if here.batch < last.batch == driver.batch - 1 and rules.everywhere:
        yield from _taken(state, place, driver, last, world, "complete")
        return
    yield f"publishes what was decided before in database {driver.queue}", _published(after, driver.queue, world)


def decide(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    if not rules.anywhere:  # each database for itself
        yield "decides in each database", state.with_driver(place, driver._replace(step="take"))
        return
    coordinator = 0 if rules.coordinator else driver.attempt % world.databases
    ledger = state.ledgers[coordinator]
    if ledger.batch > driver.batch:
        yield REFUSED + ": the sink is at another batch", state.with_driver(place, None)
        return
    if ledger.batch < driver.batch:
        if not _all_staged(state, driver, world):
            yield "fails: another process has discarded its rows", state.with_driver(place, None)
            return
        state = _with_ledger(state, coordinator, Ledger(driver.batch, driver.attempt, driver.rows))
    step = "take" if rules.own else "sweep"
    yield f"decides batch {driver.batch}", state.with_driver(place, driver._replace(step=step))


def _all_staged(state: State, driver: Driver, world: World) -> bool:
    wanted = {
        Stage(one, driver.batch, driver.attempt, rows)
        for one in range(world.databases)
        if (rows := share(driver.rows, driver.attempt, one, world))
    }
    return wanted <= state.stages


def take(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """Another database takes the decision into its ledger."""
    last, here = _decision(state), state.ledgers[driver.queue]
    if here.batch > driver.batch:
        yield REFUSED + ": the sink is at another batch", state.with_driver(place, None)
    elif here.batch == driver.batch:
        yield (
            f"finds it decided in database {driver.queue}",
            state.with_driver(place, driver._replace(step="publish")),
        )
    elif not rules.anywhere:
        own = Ledger(driver.batch, driver.attempt, driver.rows)
        after = _with_ledger(state, driver.queue, own).with_driver(place, driver._replace(step="publish"))
        yield f"decides batch {driver.batch} in database {driver.queue}", after
    else:
        yield from _taken(state, place, driver, last, world, "publish")


def _taken(state: State, place: int, driver: Driver, last: Ledger, world: World, then: str) -> Moves:
    rows, here = share(last.rows, last.attempt, driver.queue, world), state.ledgers[driver.queue]
    if any(one.key == driver.queue and here.batch < one.batch < last.batch for one in state.stages):
        yield REFUSED + ": the database has lost a batch", state.with_driver(place, None)
        return
    if rows and Stage(driver.queue, last.batch, last.attempt, rows) not in state.stages:
        yield REFUSED + ": decided rows are gone", state.with_driver(place, None)
        return
    after = _with_ledger(state, driver.queue, last).with_driver(place, driver._replace(step=then))
    yield f"takes batch {last.batch} in database {driver.queue}", after


def publish(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    step = driver._replace(step="sweep")
    if not rules.own:
        step = _next(driver, world, "finish", first="take")
    after = _published(state, driver.queue, world).with_driver(place, step)
    yield f"publishes batch {driver.batch} in database {driver.queue}", after


def _published(state: State, database: int, world: World) -> State:
    """What the ledger of a database names becomes visible there, and leaves its stage."""
    ledger = state.ledgers[database]
    for one in [one for one in state.stages if one.key == database and _names(ledger, one)]:
        state = state._replace(stages=state.stages - {one}).show(one.rows)
    return state


def sweep(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    named = [state.ledgers[driver.queue], *([_decision(state)] if rules.own else [])]
    kept = frozenset(
        one
        for one in state.stages
        if one.key != driver.queue or one.batch > driver.batch or any(_names(ledger, one) for ledger in named)
    )
    after = _next(driver, world, "finish", first="take") if rules.own else _next(driver, world, "take")
    done = f"discards what is left in database {driver.queue}"
    yield done, state._replace(stages=kept).with_driver(place, after)


def abort(state: State, place: int, driver: Driver, rules: Rules) -> Moves:
    """A process that fails discards what it has staged, but not what a ledger names, or if it cannot read all."""
    done = "fails, and aborts its write"
    yield done, _discarded(state, driver, rules).with_driver(place, None)
    for away in range(len(state.ledgers) if state.has("away") else 0):
        after = state if rules.away else _discarded(state, driver, rules, away)
        yield f"{done} without database {away}", after.with_driver(place, None).less("away")


def _discarded(state: State, driver: Driver, rules: Rules, away: int = -1) -> State:
    """Discard what a process has staged, but not what a ledger names; one database may be away."""
    asked = {key: ledger for key, ledger in enumerate(state.ledgers) if key != away}

    def kept(one: Stage) -> bool:
        own = [asked[one.key]] if one.key in asked else []
        mine = one.key in asked and (one.batch, one.attempt) == (driver.batch, driver.attempt)
        return not mine or any(_names(ledger, one) for ledger in (asked.values() if rules.asks_all else own))

    return state._replace(stages=frozenset(filter(kept, state.stages)))


def lost_takes(state: State, world: World) -> Iterator[tuple[Step, State]]:
    """A server that fails loses what it wrote last: that its database took and published a decision.

    Where that happens after a process has looked, and before it decides the next batch, it is refused (`_taken`).
    """
    last = state.ledgers[0]
    if any(one and one.step in ("complete", "decide") for one in state.drivers):
        return
    for database in range(1, world.databases):
        rows = share(last.rows, last.attempt, database, world)
        stage = Stage(database, last.batch, last.attempt, rows)
        if state.ledgers[database] == last and rows and stage not in state.stages:
            before = _with_ledger(state, database, Ledger(last.batch - 1))
            visible = tuple(n - (row in rows) for row, n in enumerate(state.visible))
            after = before._replace(stages=state.stages | {stage}, visible=visible).less("failovers")
            yield Step("server", f"loses what database {database} took", True), after


def completed(state: State, world: World) -> Iterator[tuple[Step, State]]:
    """An operator lets the last decision become visible in all databases."""
    last, after = _decision(state), state
    for database in range(world.databases):
        rows = share(last.rows, last.attempt, database, world)
        if not rows or Stage(database, last.batch, last.attempt, rows) in after.stages:
            after = _published(_with_ledger(after, database, last), database, world)
    if after != state:
        yield Step("operator", "completes the sink"), after


#: Steps in which a process may fail and abort its write.
FAILING = ("complete", "decide", "take", "publish", "sweep")


def _names(ledger: Ledger, stage: Stage) -> bool:
    return (ledger.batch, ledger.attempt) == (stage.batch, stage.attempt)


def _with_ledger(state: State, database: int, ledger: Ledger) -> State:
    return state._replace(ledgers=(*state.ledgers[:database], ledger, *state.ledgers[database + 1 :]))


STEPS: dict[str, Callable[[State, int, Driver, World, Rules], Moves]] = {
    "stage": stage, "complete": complete, "decide": decide, "take": take, "publish": publish, "sweep": sweep,
}  # fmt: skip
