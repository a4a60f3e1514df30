"""The sink of the model: files, which go by the number of a batch, or queues, with stages and a ledger."""

from __future__ import annotations

from tests.protocol.rules import Rules
from tests.protocol.state import REFUSED, Driver, Moves, Stage, State, World


def write(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """Files go by the number of a batch: one that is there is not written again."""
    ledger = state.ledgers[driver.query]
    if driver.batch > ledger.batch:
        state = state.show(driver.rows).decide(driver.query, driver, 0)
    yield f"writes batch {driver.batch}", state.with_driver(place, driver._replace(step="finish"))


def _key(driver: Driver, rules: Rules) -> int:
    """Return the number of the ledger that a process uses."""
    return driver.query if rules.apart else 0


def stage(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    key = _key(driver, rules)
    ledger = state.ledgers[key]
    if driver.batch < ledger.batch or driver.batch > ledger.batch + 1:
        yield REFUSED + ": the sink is at another batch", state.with_driver(place, None)
    elif driver.batch == ledger.batch:
        fits = driver.rows <= ledger.rows if rules.subset else driver.rows == ledger.rows
        if rules.rows and not fits:
            yield REFUSED + ": rows were never written", state.with_driver(place, None)
        else:
            yield "skips what is written", state.with_driver(place, driver._replace(step="publish"))
    else:
        used = {one.attempt for one in state.stages if (one.key, one.batch) == (key, driver.batch)}
        used |= {one.attempt for one in state.drivers if one and one.batch == driver.batch}
        attempt = next(n for n in range(9) if n not in used)
        stage = Stage(key, driver.batch, attempt, driver.rows)
        staged = driver._replace(step="complete", attempt=attempt)
        yield f"stages batch {driver.batch}", state._replace(stages=state.stages | {stage}).with_driver(place, staged)


def published(state: State, key: int, rules: Rules) -> State:
    """What the ledger names becomes visible, and leaves its stage."""
    for one in [one for one in state.stages if one.key == key and state.names(one)]:
        state = (state._replace(stages=state.stages - {one}) if rules.leave else state).show(one.rows)
    return state


def complete(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    after = published(state, _key(driver, rules), rules) if rules.complete else state
    step = "decide" if rules.decide else "publish"
    yield "publishes what was decided before", after.with_driver(place, driver._replace(step=step))


def decide(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    key = _key(driver, rules)
    ledger = state.ledgers[key]
    if driver.batch < ledger.batch:
        yield REFUSED + ": the sink is at another batch", state.with_driver(place, None)
        return
    if driver.batch > ledger.batch:
        stage = Stage(key, driver.batch, driver.attempt, driver.rows)
        if stage not in state.stages and rules.decide:
            yield "fails: another process has discarded its rows", state.with_driver(place, None)
            return
        state = state.decide(key, driver, driver.attempt)
    step = "publish" if rules.decide else "sweep"
    yield f"decides batch {driver.batch}", state.with_driver(place, driver._replace(step=step))


def publish(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    if rules.decide:
        after = published(state, _key(driver, rules), rules)
    else:
        mine = Stage(_key(driver, rules), driver.batch, driver.attempt, driver.rows)
        there = mine in state.stages
        after = state._replace(stages=state.stages - {mine}).show(driver.rows) if there else state
    step = "sweep" if rules.decide else "decide"
    yield f"publishes batch {driver.batch}", after.with_driver(place, driver._replace(step=step))


def sweep(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    kept = frozenset(
        one
        for one in state.stages
        if one.key != _key(driver, rules) or one.batch > driver.batch or (rules.keep and state.names(one))
    )
    yield "discards what is left", state._replace(stages=kept).with_driver(place, driver._replace(step="finish"))
