"""The rules of the protocol, each of which a search can leave out; and faults, planted in the same way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """Which rules are kept."""

    floor: bool = True  # an offset older than the batch that was started last is refused
    by: bool = True  # the tag of a reservation names the process that made it
    owner: bool = True  # only the owner of a consumer starts a batch
    absent: bool = True  # the note of a consumer that is absent is an error, unless the checkpoint is new
    bound: bool = True  # a query reads one epoch
    short: bool = True  # until its batch is started, a reservation has a lease that ends
    complete: bool = True  # what was decided before is published before something new is decided
    keep: bool = True  # what the ledger names is not discarded
    rows: bool = True  # a batch that comes again may only have rows that were written
    subset: bool = True  # … and may lack some of them
    strays: bool = True  # what other processes have reserved is given back only while its lease may end
    every: bool = True  # a batch of several queues is started in each, also in one without messages
    all_bound: bool = True  # … and the query reads one epoch in each
    empty_bound: bool = True  # a batch without messages binds the query, too
    abandoned: bool = True  # what an epoch holds of which no batch was started goes back, once its process is dead
    first: bool = True  # … and before anything is claimed
    unread: bool = True  # what is left of a batch of several queues goes back, if it was not started in each
    anywhere: bool = True  # a batch that one database of the sink has decided on is decided in all
    everywhere: bool = True  # … and the next one is not decided before all have it
    coordinator: bool = True  # all processes decide in the same database
    own: bool = True  # a database discards stages of a batch only when its own ledger has it
    asks_all: bool = True  # an abort discards nothing that any ledger names
    away: bool = True  # … and nothing at all if one of them cannot be read
    apart: bool = True  # each query has a ledger of its own
    follows: bool = True  # a batch is the one started last, or the next one: else the database went back
    noted: bool = True  # … and the next one is the one reserved last
    behind: bool = True  # … and no earlier one is still held without end
    settled: bool = True  # what is left of a batch of several queues is not released, if its sink has it
    # Left out, these are planted faults.
    late: bool = True  # messages are removed when their batch is finished, not when it is read
    decide: bool = True  # a batch is decided before it is published
    leave: bool = True  # what is published leaves its stage in the same step
    tagged: bool = True  # a commit is fenced by the tag
    planned: bool = True  # with the calls of Spark 4.0 and 4.1, a process knows the end that was planned last
    leased: bool = True  # a claim leaves alone what another process holds
