"""Worlds of the protocol that are searched, and what becomes of them without one of its rules."""

from __future__ import annotations

from tests.protocol.rules import Rules
from tests.protocol.state import World

#: Nothing happens that may not happen: no step refuses, nothing is lost, all arrives.
LEGITIMATE = {
    "crashes": World(crashes=2, ends=1, takers=1),
    "batches of two": World(most=2, crashes=2, ends=1, takers=1),
    "at least once": World(endless=False, most=2, crashes=2, ends=1, takers=1),
    "files": World(sink="files", most=2, crashes=2, ends=1, takers=1),
    "partitions": World(cut=True, most=2, crashes=2, ends=1, takers=1),
    "partitions, at least once": World(cut=True, endless=False, most=2, crashes=1, ends=1, takers=1),
    "reserves ahead": World(ahead=True, crashes=2, ends=1),
    "reserves ahead, at least once": World(ahead=True, endless=False, crashes=1, ends=1, takers=1),
    "a new checkpoint": World(crashes=2, ends=1, fresh=1),
    "a publish is lost": World(crashes=2, failovers=1),
    "three messages": World(messages=3, most=2, crashes=1, ends=1, takers=1),
    "a takeover": World(drivers=2, takeovers=1, ends=1),
    "a takeover, files": World(drivers=2, sink="files", takeovers=1, ends=1),
    "calls of Spark 4.0": World(old_calls=True, crashes=1, ends=1, takers=1),
    "calls of Spark 4.0, at least once": World(old_calls=True, endless=False, crashes=1, ends=1),
    "a first batch without messages": World(empty=True, crashes=1, ends=1, takers=1),
    "one of two queues": World(queues=2, crashes=1, ends=1, takers=1),
    "one of two queues, at least once": World(queues=2, endless=False, crashes=1, ends=1, takers=1),
    "one of two queues, a new checkpoint": World(queues=2, crashes=1, fresh=1),
    "one of two queues, calls of Spark 4.0": World(queues=2, old_calls=True, crashes=1, ends=1),
    "one of two queues, a takeover": World(queues=2, drivers=2, takeovers=1),
    "two queues": World(queues=2, combine="zip", crashes=2, ends=1, takers=1),
    "two queues, at least once": World(queues=2, combine="zip", endless=False, crashes=1, ends=1, takers=1),
    "two queues, three messages": World(messages=3, queues=2, combine="zip", most=2, crashes=1, ends=1, takers=1),
    "two queues, a takeover": World(queues=2, combine="zip", drivers=2, takeovers=1),
    "tries": World(crashes=2),
    "tries, at least once": World(endless=False, most=2, crashes=2),
    "pairs": World(messages=4, queues=2, combine="zip", crashes=2),
    "pairs, at least once": World(messages=4, queues=2, combine="zip", most=2, endless=False, crashes=1),
    "two databases": World(databases=2, most=2, crashes=2, aborts=1),
    "two databases, at least once": World(databases=2, most=2, endless=False, crashes=2),
    "two databases, three messages": World(messages=3, databases=2, most=2, crashes=1, aborts=1),
    "two databases, one loses a publish": World(databases=2, crashes=1, failovers=1),
    "two databases, one is away": World(databases=2, most=2, crashes=1, aborts=1, away=1),
    "two databases, a takeover": World(databases=2, messages=2, most=2, drivers=2, takeovers=1),
    "two queries": World(queries=2, drivers=2, crashes=1),
    "two queries, three messages": World(messages=3, most=2, queries=2, drivers=2),
    "two queries, a takeover": World(queries=2, drivers=2, takeovers=1),
    "two queries, a new checkpoint": World(messages=1, queries=2, drivers=2, crashes=1, fresh=1),
    "two queries of two queues": World(queries=2, queues=2, combine="zip", drivers=2, crashes=1),
    "two queries of two queues, a takeover": World(queries=2, queues=2, combine="zip", drivers=2, takeovers=1),
    "notes what is reserved": World(noted=True, crashes=2, ends=1, takers=1),
    "notes what is reserved, a takeover": World(noted=True, drivers=2, takeovers=1),
    "notes what is reserved, two queues": World(noted=True, queues=2, combine="zip", crashes=1, ends=1, takers=1),
    "notes what is reserved, one of two queues": World(noted=True, queues=2, crashes=1, ends=1),
    "a source of others": World(foreign=True, most=2, crashes=2),
    "a source of others, files": World(foreign=True, sink="files", most=2, crashes=2),
}

#: A checkpoint goes back, or a note goes: a step may refuse, and nothing is lost or doubled.
DAMAGED = {
    "a copy": World(crashes=1, copies=1, ends=1),
    "a copy, batches of two": World(most=2, crashes=1, copies=1, ends=1, takers=1),
    "partitions, a copy": World(cut=True, most=2, crashes=1, copies=1, ends=1),
    "a copy, at least once": World(endless=False, crashes=1, copies=1, ends=1, takers=1),
    "a copy, files": World(sink="files", crashes=1, copies=1, ends=1, takers=1),
    "three messages, a copy, files": World(messages=3, sink="files", copies=1),
    "a lost end": World(crashes=1, cuts=2, ends=1),
    "a lost end, at least once": World(endless=False, crashes=1, cuts=2, ends=1, takers=1),
    "a lost end, files": World(sink="files", crashes=1, cuts=2, ends=1, takers=1),
    "an aged note": World(sink="files", copies=1, aged=1, crashes=1),
    "a new checkpoint and a copy": World(crashes=1, fresh=1, copies=1),
    "a lost publish and a copy": World(crashes=1, failovers=1, copies=1),
    "a takeover and a copy": World(messages=1, drivers=2, takeovers=1, copies=1),
    "calls of Spark 4.0, a copy": World(old_calls=True, most=2, crashes=1, copies=1, ends=1),
    "calls of Spark 4.0, a lost end, files": World(old_calls=True, sink="files", crashes=1, cuts=2),
    "a first batch without messages, a copy": World(empty=True, crashes=1, copies=1),
    "a first batch without messages, a lost end, files": World(empty=True, sink="files", crashes=1, cuts=2, ends=1),
    "one of two queues, a copy": World(queues=2, crashes=1, copies=1, ends=1),
    "one of two queues, a lost end, files": World(queues=2, empty=True, sink="files", crashes=1, cuts=2),
    "one of two queues, an aged note": World(queues=2, sink="files", copies=1, aged=1, crashes=1),
    "two queues, a copy": World(queues=2, combine="zip", crashes=1, copies=1, ends=1),
    "two queues, a lost end, files": World(queues=2, combine="zip", sink="files", crashes=1, cuts=2, ends=1),
    "a source of others, a copy": World(foreign=True, most=2, crashes=1, copies=1),
    "a source of others, a lost end": World(foreign=True, most=2, crashes=1, cuts=2),
}

#: The database of a queue goes back to a copy: a process refuses to go on, or all arrives once.
WENT_BACK = {
    "a database goes back": World(crashes=1, backs=1),
    "a database goes back, batches of two": World(messages=3, most=2, crashes=1, backs=1),
    "a database goes back, at least once": World(messages=3, endless=False, crashes=1, backs=1),
    "a database goes back, files": World(messages=3, sink="files", crashes=1, backs=1),
    "a database goes back, calls of Spark 4.0": World(old_calls=True, backs=1),
    "one of two databases goes back": World(messages=4, queues=2, combine="zip", crashes=1, backs=1),
}

#: Searched by `make test-all` only.
LARGE = {
    "a takeover, at least once": World(drivers=2, endless=False, takeovers=1, ends=1),
    "a takeover, batches of two": World(drivers=2, most=2, takeovers=1, ends=1),
    "calls of Spark 4.0, a takeover": World(messages=1, old_calls=True, drivers=2, takeovers=1, ends=1),
    "calls of Spark 4.0, two crashes": World(old_calls=True, crashes=2, ends=1, takers=1),
    "one of two queues, a takeover, a crash": World(queues=2, drivers=2, takeovers=1, crashes=1),
    "one of two queues, two lost ends, files": World(queues=2, sink="files", crashes=2, cuts=2, ends=1, takers=1),
    "one of two queues, calls of Spark 4.0, crashes": World(queues=2, old_calls=True, crashes=2, ends=1, takers=1),
    "two queues, a lost end, another consumer, files": World(
        queues=2, combine="zip", sink="files", crashes=2, cuts=2, ends=1, takers=1
    ),
    "two queues, a takeover, ended leases": World(queues=2, combine="zip", drivers=2, takeovers=1, ends=1, takers=1),
    "two queues, four messages, a copy": World(messages=4, queues=2, combine="zip", most=2, crashes=1, copies=1),
    "a takeover, ended leases, another consumer": World(drivers=2, takeovers=1, ends=1, takers=1),
    "a takeover, a crash": World(drivers=2, takeovers=1, crashes=1),
    "partitions, a takeover": World(drivers=2, most=2, cut=True, takeovers=1),
    "a takeover and a copy, two messages": World(drivers=2, takeovers=1, copies=1),
    "a takeover and a lost end, files": World(drivers=2, sink="files", takeovers=1, cuts=1, crashes=1),
    "three messages, batches of two": World(messages=3, most=2, crashes=2, ends=2, takers=1),
    "four messages, a copy, files": World(messages=4, most=2, sink="files", crashes=1, copies=1, ends=1),
    "two queries, a crash, at least once": World(endless=False, queries=2, drivers=2, crashes=1),
    "two queries of one of two queues": World(queries=2, queues=2, drivers=2, crashes=1),
    "two queries, two messages, a new checkpoint": World(queries=2, drivers=2, crashes=1, fresh=1),
    "two queries, a takeover and a crash": World(queries=2, drivers=2, takeovers=1, crashes=1),
    "a database goes back, two crashes": World(messages=3, crashes=2, backs=1),
    "a database goes back, calls of Spark 4.0, a crash": World(old_calls=True, crashes=1, backs=1),
    "a database of one of two queues goes back": World(messages=4, queues=2, crashes=1, backs=1),
    "reserves ahead, batches of two": World(messages=3, most=2, ahead=True, crashes=1, ends=1),
}

#: Searched from where one batch is finished.
AFTER_ONE_BATCH = {"three processes": World(messages=2, drivers=3, takeovers=2)}

#: By rule: a world in which something goes wrong without it, and what does. `traces/` has the shortest way to it.
WITHOUT = {
    "floor": (World(messages=3, sink="files", copies=1), "LOST"),
    "by": (World(messages=3, drivers=2, crashes=1, takeovers=1), "LOST"),
    "owner": (World(drivers=2, takeovers=1), "STUCK"),
    "absent": (World(messages=3, sink="files", copies=1, aged=1), "LOST"),
    "bound": (World(sink="files", crashes=1, cuts=1), "LOST"),
    "short": (World(crashes=1), "STUCK"),
    "complete": (World(crashes=1, failovers=1), "LOST"),
    "keep": (World(crashes=1, failovers=1), "LOST"),
    "rows": (World(foreign=True, most=2, crashes=1, cuts=1), "LOST"),
    "subset": (World(most=2, crashes=1, ends=1, takers=1, endless=False), "FALSE ALARM"),
    "strays": (World(messages=2, drivers=3, takeovers=2), "DOUBLED"),
    "every": (World(queues=2, crashes=1), "FALSE ALARM"),
    "all_bound": (World(queues=2, sink="files", crashes=1, cuts=1), "LOST"),
    "empty_bound": (World(empty=True, sink="files", crashes=1, cuts=1), "LOST"),
    "abandoned": (World(messages=4, queues=2, combine="zip", crashes=1, counting=False), "UNPAIRED"),
    "first": (World(crashes=1), "TRIED"),
    "unread": (World(queues=2, combine="zip", crashes=1, ends=1, takers=1), "FALSE ALARM"),
    "anywhere": (World(databases=2, crashes=1), "DOUBLED"),
    "everywhere": (World(messages=3, databases=2, most=2, failovers=1), "LOST"),
    "coordinator": (World(databases=2, drivers=2, takeovers=1), "DOUBLED"),
    "own": (World(databases=2, crashes=1), "FALSE ALARM"),
    "asks_all": (World(databases=2, most=2, aborts=1), "FALSE ALARM"),
    "away": (World(databases=2, most=2, aborts=1, away=1), "FALSE ALARM"),
    "apart": (World(queries=2, drivers=2), "FALSE ALARM"),
    "noted": (World(crashes=1, backs=1), "DOUBLED"),
    "follows": (World(messages=3, crashes=1, backs=1), "DOUBLED"),
    "behind": (World(messages=3, queues=2, crashes=1, backs=1), "DOUBLED"),
    "settled": (World(messages=3, queues=2, combine="zip", crashes=1, copies=1), "DOUBLED"),
    "late": (World(crashes=1), "LOST"),
    "decide": (World(crashes=1), "DOUBLED"),
    "leave": (World(crashes=1), "DOUBLED"),
    "tagged": (World(most=2, crashes=1, takers=1, endless=False), "LOST"),
    "planned": (World(old_calls=True, crashes=1), "DOUBLED"),
    "leased": (World(crashes=1, fresh=1), "DOUBLED"),
}


#: Rules for which that is searched from where one batch is finished.
LATER = ("by", "strays")


def without(rule: str) -> Rules:
    """Return all rules but this one."""
    return Rules(**{rule: False})
