"""Do the proofs notice a bug? `python -m tests.chaos.planted [NAME …] [-- arguments of make chaos]`

Each bug is planted in a copy of the tree, where its test, one of `make test`, has to fail: see test_planted.py. This
program lets worlds of kills find those of exactly-once; docs/reliability.md says what came of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos import bugs_of_services, bugs_of_spark, bugs_of_stores
from tests.chaos.bug import CONFORMANCE, Bug
from tests.chaos.kinds import DATABASES, INPUTS
from tests.services import SERVICES, service_urls

ROOT = Path(__file__).resolve().parents[2]

BUGS: dict[str, Bug] = {
    **bugs_of_spark.BUGS,
    **bugs_of_stores.BUGS,
    **bugs_of_services.BUGS,
    "others may read the key of tokens": Bug(
        "events/work_tokens.py",
        "            if about.st_mode & 0o077:\n",
        "            if about.st_mode & 0o007:\n",
        "tests/events/test_work_tokens.py::test_a_file_that_others_may_use_is_refused",
    ),
    "Spark gets the tokens": Bug(
        "events/work_tokens.py",
        "    return {digest: (dict(one.options), one.pickled)",
        "    return {digest: ({**one.options, 'token': one.token}, one.pickled)",
        "tests/events/test_work_tokens.py::test_what_spark_gets_has_neither_the_key_nor_tokens",
    ),
    "a pushed internal event is obeyed": Bug(
        "events/builtin.py",
        "    events.check_origin(event)\n",
        "",
        "tests/events/test_origin.py::test_a_pushed_internal_event_fails_and_its_reason_names_the_setting",
    ),
    "a proof is for any URIs": Bug(
        "events/origin.py",
        "event.payload, event.uris]",
        "event.payload]",
        "tests/events/test_origin.py::test_a_proof_is_for_one_event",
    ),
    "a proof is for any id": Bug(
        "events/origin.py",
        "    facts = [queue, event.id, ",
        "    facts = [queue, ",
        "tests/events/test_origin.py::test_a_proof_is_for_one_id_and_one_queue",
    ),
    "an internal event is obeyed for ever": Bug(
        "events/origin.py",
        "    if store.now() - event.created.timestamp() * 1000 > MAX_AGE:\n",
        "    if False:\n",
        "tests/events/test_origin.py::test_an_internal_event_is_obeyed_for_a_day",
    ),
    "any collection is a queue": Bug(
        "stores/mongodb/marks.py",
        "            return _UNMARKED\n",
        "            return Mark.BARE\n",
        "tests/stores/mongodb/test_marks.py::test_a_collection_that_is_no_queue_is_not_touched",
    ),
    "a collection in the place of a queue is one": Bug(
        "stores/mongodb/store.py",
        '        return {} if bare else {"hint": index.document["name"]}\n',
        "        return {}\n",
        "tests/stores/mongodb/test_marks.py::test_a_collection_in_the_place_of_a_queue_is_not_touched",
    ),
    "any SQLite file is one of queues": Bug(
        "stores/sqlite/store.py",
        "        if version <= SCHEMA_VERSION and is_foreign(opened, SCHEMA[:version]):\n",
        "        if version == 0 and is_foreign(opened, ()):\n",
        "tests/stores/sqlite/test_foreign.py::test_a_file_of_another_program_is_not_touched",
    ),
    "a pause of another database is not seen": Bug(
        "stores/mongodb/beside.py",
        "        name = place or f",
        "        name = f",
        "tests/stores/mongodb/test_beside.py::test_each_layout_of_mongodb_has_them",
    ),
    "files stay open at a fork": Bug(
        "stores/sqlite/forks.py",
        "                if not one.is_snapshot:\n",
        "                if False:\n",
        "tests/client/test_forked_clients.py::test_what_a_forked_worker_pushes_is_there",
    ),
    "a child uses files that were open at its fork": Bug(
        "stores/sqlite/forks.py",
        "        if file in self._refused_files:\n",
        "        if False:\n",
        "tests/stores/sqlite/test_forks.py::test_a_child_of_c_code_is_refused_the_files_that_were_open",
    ),
    "a child of a thread in a call goes on": Bug(
        "stores/sqlite/forks.py",
        "        if parent._calls:",
        "        if False:",
        "tests/stores/sqlite/test_forks.py::test_a_child_is_refused_if_a_thread_was_in_a_call",
    ),
    "a child closes what it has inherited": Bug(
        "stores/sqlite/file.py",
        "            self.keep()\n            return\n",
        "            super().close()\n            return\n",
        "tests/stores/sqlite/test_forks.py::test_a_child_does_not_close_what_it_inherited_when_it_ends",
    ),
    "a batch is committed unread": Bug(
        "spark/read/proof.py",
        "        if progress is not None and not progress.complete and is_held():\n",
        "        if False:\n",
        "tests/spark/read/test_unread.py::test_a_batch_that_was_not_read_is_not_committed",
    ),
    "what is between a task and Spark counts as read": Bug(
        "stores/services/reading.py",
        "(self.taken is None or self.taken >= self.rows)",
        "True",
        "tests/spark/read/test_unread.py::test_a_batch_that_was_not_read_is_not_committed",
    ),
    "what an earlier run has read counts": Bug(
        "stores/services/reading.py",
        'return (value["batch"], value["run"]) == (str(batch), run)',
        'return bool(value["batch"] == str(batch))',
        "tests/spark/read/test_unread.py::test_nor_does_it_if_spark_never_reports_the_last_run",
    ),
    "a late task is believed": Bug(
        "stores/services/reading.py",
        "return old if old is not None and _order(old) > _order(value) else value",
        "return value",
        "tests/spark/read/test_unread.py::test_a_late_task_of_an_earlier_batch_or_run_changes_nothing",
    ),
    "an unread batch gives no warning": Bug(
        "spark/unread.py",
        "one.read < one.messages",
        "one.read < 0",
        "tests/spark/test_unread_watch.py::test_a_batch_that_was_not_read_is_a_warning",
    ),
    "a batch arrives again when it comes again": Bug(
        "spark/read/queue_stream.py",
        "FetchPartition(share, end.get(ARRIVED), proof)",
        "FetchPartition(share, __import__('time').time_ns() // 10**6, proof)",
        "tests/spark/read/test_arrived.py::test_it_grows_from_batch_to_batch_and_is_the_same_when_a_batch_comes_again",
    ),
    "the time of arrival goes back with the clock": Bug(
        "spark/read/arrival.py",
        "return max(store.now(), before + 1)",
        "return store.now()",
        "tests/spark/read/test_arrived.py::test_it_grows_though_the_clock_was_set_back",
    ),
    "a retry is a new push": Bug(
        "stores/sqlite/store.py",
        "SET lease = NULL, mature = coalesce(?, mature), tries",
        "SET lease = NULL, mature = coalesce(?, mature), pushed = 5, tries",
        CONFORMANCE + "test_a_rollback_keeps_it",
    ),
    "a message in the history forgets its push": Bug(
        "stores/sqlite/store.py",
        'COPIED_COLUMNS = "id, payload, kind, headers, mature, tries, pushed"',
        'COPIED_COLUMNS = "id, payload, kind, headers, mature, tries"',
        CONFORMANCE + "test_the_history_keeps_it",
    ),
    "a damaged record is pushed when it dies": Bug(
        "stores/support/dead_lettering.py",
        "batch = batch_of(rows, WRITTEN)",
        "batch = batch_of(rows)",
        "tests/stores/test_pushed.py::test_a_damaged_record_that_becomes_a_dead_letter_keeps_it",
    ),
    "what an older version staged is pushed in 1970": Bug(
        "stores/sqlite/store.py",
        "published[queue] += _insert(db, queue, _to_rows(batch, None))",
        "published[queue] += _insert(db, queue, _to_rows(batch, 0))",
        "tests/stores/test_pushed.py::test_messages_in_a_file_of_an_older_version_have_none",
    ),
    "a compaction has one push": Bug(
        "messages/buckets.py",
        'for name in ("mature", "pushed") if _differ',
        'for name in ("mature",) if _differ',
        "tests/messages/test_buckets.py::test_messages_of_different_pushes_keep_their_moments",
    ),
}

#: Where those that are killed have to be few kinds for the short time between two steps to be met soon.
AIMED = {
    "visible before the ledger": ["--victim", "sink"],
    "an older checkpoint goes on": ["--victim", "copy", "--victim", "lost"],
    "a sink that delivers at least once": ["--victim", "worker"],
    "an abandoned epoch keeps what it has reserved": ["--store", f"sqlite {INPUTS}", "--kills", "3"],
    "each database decides alone": ["--store", f"sqlite {DATABASES}", "--victim", "away", "--victim", "sink"],
}

#: What promises less, and has to fail as well.
OPTIONS = {
    "a sink that delivers at least once": ["--sink", "delivery=at-least-once"],
    "a MongoDB that acknowledges before it journals": [
        "--store",
        "mongodb",
        "--mongodb",
        "w=1&journal=false",
    ],
    "a Redis without a log": ["--store", "redis", "--aof", "none"],
}


def main(words):
    cut = words.index("--") if "--" in words else len(words)
    usual = [*(name for name, bug in BUGS.items() if bug.worlds), *OPTIONS]
    names, rest = words[:cut] or usual, words[cut + 1 :]
    missed = [name for name in names if not caught(name, rest)]
    print(f"not caught: {missed}" if missed else f"all {len(names)} caught", flush=True)
    return int(bool(missed))


def plant(name, root):
    """Plant a bug in the copy of the tree that is in this folder."""
    bug = BUGS[name]
    path = Path(root, "spark_queue", bug.file)
    text = path.read_text()
    assert text.count(bug.right) == 1, f"{bug.file} has changed: plant {name!r} anew"
    path.write_text(text.replace(bug.right, bug.wrong))


def copied(folder):
    """Copy into that folder what programs and tests need of the tree."""
    ignored = shutil.ignore_patterns("node_modules", "__pycache__")
    for one in ("spark_queue", "pyspark_queue", "tests", "jobs", "conf", "notebooks"):
        shutil.copytree(ROOT / one, Path(folder, one), ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    if (ROOT / ".services").exists():
        Path(folder, ".services").symlink_to(ROOT / ".services")  # where a mongod may lie
    return Path(folder)


def prove(name, folder):
    """Run the test of a bug in a copy of the tree in which it is planted, and return what pytest printed.

    Raises `AssertionError` unless the test ran there and failed.
    """
    root = copied(folder)
    plant(name, root)
    urls = {service.variable: url for service in SERVICES if (url := service_urls().get(service.name))}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not full", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--timeout", "150", BUGS[name].test],
        cwd=root,
        env=os.environ | urls | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    summary = done.stdout.strip().splitlines()[-1:]
    assert done.returncode == 1 and "1 failed" in summary[0], f"{name!r} is not caught: {done.stdout[-3000:]}"
    return done.stdout


def caught(name, arguments):
    with tempfile.TemporaryDirectory(prefix="spark_queue-planted-") as folder:
        copied(folder)
        if name in BUGS:
            plant(name, Path(folder))
        print(f"--- {name}", flush=True)
        command = [sys.executable, "-m", "tests.chaos", "--kills", "20", "--seed", "7"]
        command += [*OPTIONS.get(name, []), *AIMED.get(name, []), *arguments]
        command += [] if "--store" in command else ["--store", "sqlite"]
        return subprocess.run(command, cwd=folder, env=os.environ | {"TMPDIR": folder}, check=False).returncode == 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
