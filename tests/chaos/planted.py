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
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.kinds import DATABASES, INPUTS
from tests.services import SERVICES, service_urls

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    """An error that one might well make: in a file below spark_queue, `wrong` in the place of `right`.

    `test` is the test of `make test` that fails with it. `worlds`: whether the worlds of `make chaos` find it.
    """

    file: str
    right: str
    wrong: str
    test: str
    worlds: bool = False


CONFORMANCE = "tests/stores/test_conformance.py::TestStore::"

BUGS: dict[str, Bug] = {
    "no ledger check": Bug(
        "stores/services/ledger.py",
        "    last = NO_BATCH if ledger is None else ledger.batch\n",
        "    return False\n    last = NO_BATCH if ledger is None else ledger.batch\n",
        "tests/spark/write/test_publish.py::test_a_batch_that_comes_again_is_not_written_again",
        worlds=True,
    ),
    "visible before the ledger": Bug(
        "stores/services/publishing.py",
        "        replaced = self._stores[name].set_note(",
        "        self._stores[name].publish(value['stages'])\n        replaced = self._stores[name].set_note(",
        "tests/spark/write/test_publish.py::test_nothing_is_visible_before_the_ledger_has_decided",
        worlds=True,
    ),
    "a consumer that was taken over goes on": Bug(
        "spark/read/batches.py",
        "        self.lease_renewer.check_newest(batch_of(end))\n",
        "",
        "tests/spark/read/test_consumer.py::test_a_consumer_that_was_taken_over_commits_nothing",
    ),
    "a struct with intervals loses its arrays of NULL": Bug(
        "spark/json_write.py",
        "    message = pa.record_batch([column]",
        "    return column.view(_readable_type(column.type))\n    message = pa.record_batch([column]",
        "tests/spark/test_json_write.py::test_an_interval_of_months_is_written_though_pyarrow_has_no_array_of_it",
    ),
    "a long delay begins again at 0": Bug(
        "spark/encode.py",
        "    return pc.round(pc.multiply(bounded, 1000)).cast(pa.int64())\n",
        "    return pc.round(pc.multiply(seconds, 1000)).cast(pa.int64(), safe=False)\n",
        "tests/spark/test_unfit_values.py::test_a_delay_that_no_number_of_ms_holds_is_a_bad_row",
    ),
    "a far moment is a datetime": Bug(
        "spark/encode.py",
        "    headers = header_dicts(rows)\n",
        "    headers, _ = header_dicts(rows), rows.to_pylist()\n",
        "tests/spark/test_unfit_values.py::test_a_row_with_a_far_mature_becomes_a_dead_letter",
    ),
    "a duration has no end": Bug(
        "options/parsers.py",
        "    if ms > MAX_DURATION_MS:",
        "    if ms == float('inf'):",
        "tests/options/test_durations.py::test_a_duration_that_is_too_long_is_refused",
    ),
    "a queue that is no queue ends the write": Bug(
        "spark/write/targets.py",
        "    except OptionError as error:\n",
        "    except UnicodeError as error:\n",
        "tests/spark/write/test_bad_rows.py::test_a_row_that_names_no_queue_is_one_bad_row",
    ),
    "an outcome that is none ends the write": Bug(
        "spark/write/settle.py",
        "        queue, wrong = self._queue, find_bad_rows(batch)\n",
        "        queue, wrong = self._queue, {}\n",
        "tests/spark/write/test_bad_rows.py::test_a_settle_that_names_no_message_or_outcome_is_one_bad_row",
    ),
    "a FLOAT has the digits of a DOUBLE": Bug(
        "spark/json_texts.py",
        "    texts = column.cast(pa.string())\n",
        "    texts = column.cast(pa.float64()).cast(pa.string())\n",
        "tests/spark/test_json_write.py::test_a_number_is_written_as_java_does",
    ),
    "a key is the text of Python": Bug(
        "spark/json_write.py",
        "            return _binary(column.cast(pa.string()))\n    return",
        "            return _binary(pa.array([str(one) for one in column.to_pylist()]))\n    return",
        "tests/spark/test_json_write.py::test_a_key_is_written_as_to_json_does",
    ),
    "timestamps of payloads are in UTC": Bug(
        "spark/json_style.py",
        'zone=zone_of(payload_zone(options) or "UTC").info',
        'zone=zone_of("UTC").info',
        "tests/spark/test_json_write.py::test_the_zone_of_the_option_comes_before_that_of_the_session",
    ),
    "a field of another type costs the payload": Bug(
        "spark/typed/values.py",
        "        except ValueError:\n            partly = True\n",
        "        except ArithmeticError:\n            partly = True\n",
        "tests/spark/test_typed_payloads.py::test_a_field_of_another_type_is_null_and_the_others_stay",
    ),
    "a part that is read as text is written anew": Bug(
        "spark/typed/document_reader.py",
        "if self._part is not None and not loaded.is_same:",
        "if False:",
        "tests/spark/test_typed_payloads.py::test_a_part_that_is_read_as_text_is_as_it_is_written",
    ),
    "a time without a zone is in UTC": Bug(
        "spark/payload_zone.py",
        "    zone = time_zone_of(TaskContext.get()) or zone\n",
        "    zone = None\n",
        "tests/spark/test_typed_payloads.py::test_the_zone_is_that_of_the_option_else_of_the_session_else_of_the_driver",
    ),
    "a NULL that the schema does not know reaches Spark": Bug(
        "spark/schema.py",
        '    check_not_null(shaped, batch.column("id"))\n',
        "",
        "tests/spark/test_typed_payloads.py::test_a_null_where_the_schema_has_none_names_the_field_and_the_message",
    ),
    "a queue is its own dead-letter queue": Bug(
        "options/queue_names.py",
        "    return queue not in (dead, dead_letter_queue(dead))\n",
        "    return True\n",
        "tests/options/test_dead_letter_queues.py::test_options_refuse_it",
    ),
    "ledger, and never published again": Bug(
        "stores/services/publishing.py",
        "            if ledgers.is_decided(batch, writer):\n                break\n            staged",
        "            if ledgers.is_decided(batch, writer):\n                return 0\n            staged",
        "tests/spark/write/test_publish.py::test_a_driver_that_died_after_its_decision_is_finished_by_the_next",
        worlds=True,
    ),
    "rows that come again are not compared": Bug(
        "stores/services/publishing.py",
        "            self._check_rows(ledgers, decided, hashes, writer)\n",
        "",
        "tests/spark/write/test_replay_check.py::test_a_batch_that_comes_again_with_other_rows_is_refused",
    ),
    "all attempts win": Bug(
        "spark/write/publish.py",
        '            hashes = b"".join(one.hashes for one in tasks) if self._compares_rows else None\n',
        '            hashes = b"".join(one.hashes for one in tasks) if self._compares_rows else None\n'
        "            there = {ns: primary[ns].staged(f'{sink}/{number}') for ns in primary}\n"
        "            rows = {ns: sum(one.rows for one in there[ns]) for ns in primary}\n"
        "            stages = sorted({one.stage for ns in primary for one in there[ns]})\n",
        "tests/spark/write/test_publish.py::test_of_the_attempts_of_a_task_the_one_that_won_counts",
        worlds=True,
    ),
    "what was decided is not completed": Bug(
        "stores/services/publishing.py",
        "                published += self._stores[name].publish(decided.stages)  # the",
        "                published += 0  # the",
        "tests/spark/write/test_publish.py::test_a_lost_publish_is_made_up_for_before_the_next_batch",
    ),
    "a database that went back loses what is still staged": Bug(
        "stores/services/sink_ledgers.py",
        "        return last if last and last.shares and self.takes_part(name, last) else self.found[name]\n",
        "        return self.found[name]\n",
        "tests/spark/write/test_lost_ledgers.py::"
        "test_a_failover_that_took_back_a_publish_loses_none_of_the_rows_that_are_staged",
    ),
    "what the ledger names is discarded": Bug(
        "stores/services/publishing.py",
        "self._discard(name, decided.batch, decided.stages)",
        "self._discard(name, decided.batch)",
        "tests/spark/write/test_publish.py::test_a_lost_publish_is_made_up_for_before_the_next_batch",
    ),
    "all queries of an application share its ledger": Bug(
        "stores/services/ledger.py",
        'return f"{application}:{query}" if query else application',
        "return application",
        "tests/spark/write/test_publish.py::test_a_query_with_a_new_checkpoint_writes_with_the_same_application",
    ),
    "losing attempts are not swept": Bug(
        "stores/services/publishing.py",
        "            if number <= batch:\n",
        "            if number < 0:\n",
        "tests/spark/write/test_publish.py::test_stages_of_dead_attempts_and_earlier_runs_are_swept",
        worlds=True,
    ),
    "a message at a cut is in two spans": Bug(
        "stores/sqlite/sampling.py",
        '("<", span.high)',
        '("<=", span.high)',
        f"{CONFORMANCE}test_spans_have_each_message_once",
    ),
    "a message at a cut is in two spans in MongoDB": Bug(
        "stores/mongodb/store.py",
        'ends: Document = {} if span.high is None else {"max": {"_id": span.high}}',
        "ends: Document = {}",
        f"{CONFORMANCE}test_spans_have_each_message_once",
    ),
    "a message at a cut is in two spans in Redis": Bug(
        "stores/redis/store.py",
        "id >= low and (high is None or id < high)",
        "id >= low and (high is None or id <= high)",
        f"{CONFORMANCE}test_spans_have_each_message_once",
    ),
    "each task of a batch read reads all": Bug(
        "spark/read/snapshot.py",
        "check_json=False, span=partition.span",
        "check_json=False, span=Span()",
        "tests/spark/read/test_busy_spans.py::test_no_message_comes_twice_and_none_that_stays_is_missed",
    ),
    "a message of the time at which a range ends is in it": Bug(
        "stores/services/log/finding.py",
        "if due >= moment:",
        "if due > moment:",
        "tests/spark/read/test_spans.py::test_a_range_of_a_log_by_times_and_by_positions",
    ),
    "a log that does not exist has every position": Bug(
        "spark/read/log_stream.py",
        "                check_without_log(self.options)\n",
        "",
        "tests/spark/read/test_spans.py::test_a_place_in_a_log_that_does_not_exist_is_refused",
    ),
    "a busy query counts as rarely as an idle one": Bug(
        "spark/read/backlog.py",
        "(BUSY_INTERVAL if busy else IDLE_INTERVAL)",
        "IDLE_INTERVAL",
        "tests/spark/read/test_backlog.py::test_a_busy_query_counts_for_each_report",
    ),
    "the progress has no dead letters": Bug(
        "spark/read/backlog.py",
        "if self._reports_dead else {}",
        "if sizes.total < 0 else {}",
        "tests/spark/read/test_backlog.py::test_dead_letters_are_in_the_report",
    ),
    "a queue with buckets is cut": Bug(
        "stores/sqlite/store.py",
        '            if view == "messages" and db.execute(has_bucket',
        '            if view == "history" and db.execute(has_bucket',
        f"{CONFORMANCE}test_messages_of_a_record_that_may_be_split_are_in_one_span",
    ),
    "what was reserved ahead counts a try": Bug(
        "stores/sqlite/store.py",
        "(_IS_UNSEEN, 0)",
        "(_IS_UNSEEN, 1)",
        f"{CONFORMANCE}test_messages_that_nobody_has_seen_keep_their_tries",
    ),
    "what was reserved ahead counts a try in MongoDB": Bug(
        "stores/mongodb/documents.py",
        'tries = {"$cond": [IS_UNSEEN, "$tries", add_tries(1)]}',
        "tries = add_tries(1)",
        f"{CONFORMANCE}test_messages_that_nobody_has_seen_keep_their_tries",
    ),
    "what was reserved ahead counts a try in Redis": Bug(
        "stores/redis/lua/common.lua",
        "find(tag, '/unseen$') and 0 or 1",
        "1",
        f"{CONFORMANCE}test_messages_that_nobody_has_seen_keep_their_tries",
    ),
    "a message is handed out without a try": Bug(
        "consuming/iteration.py",
        "        held = self.reserver.store.hand_out(self.reserver.queue, self._order(batch, message))\n",
        "        held = True\n",
        "tests/client/test_iteration.py::test_messages_that_are_kept_count_each",
    ),
    "a dropped iteration calls its database": Bug(
        "consuming/iteration.py",
        "weakref.finalize(self, self.lead.stop)",
        "weakref.finalize(self, self.lead.release)",
        "tests/client/test_iteration.py::test_a_dropped_iteration_calls_no_database",
    ),
    "an iteration does not renew": Bug(
        "consuming/iteration.py",
        "            lead.renew()\n",
        "            pass\n",
        "tests/client/test_iteration.py::test_leases_are_renewed_while_the_program_works",
    ),
    "an iteration yields what it has lost": Bug(
        "consuming/iteration.py",
        "        if reserver.lease is None or (seconds()",
        "        if True or (seconds()",
        "tests/client/test_iteration.py::test_what_was_lost_while_the_program_stood_still_is_skipped",
    ),
    "a damaged record ends its reader": Bug(
        "stores/support/damaged.py",
        "        except READ_ERRORS as error:\n            damaged[number]",
        "        except ZeroDivisionError as error:\n            damaged[number]",
        "tests/stores/support/test_damaged.py::test_one_odd_record_stops_nobody",
    ),
    "a damaged record is removed before it is a dead letter": Bug(
        "stores/support/dead_lettering.py",
        "    letters = _make_letters(store, queue, damaged)\n",
        "    letters = _make_letters(store, queue, damaged)\n"
        "    store.commit(queue, tag, [one.record_id for one in letters])\n",
        "tests/stores/support/test_damaged_crashes.py::test_burying_is_completed_whatever_request_fails",
    ),
    "a damaged record is a dead letter twice": Bug(
        "stores/support/dead_lettering.py",
        "        return self._store._attempt(self._find_sent_once, letters)",
        "        return set()",
        "tests/stores/support/test_damaged_crashes.py::test_burying_is_completed_whatever_request_fails",
    ),
    "a dead letter keeps all headers": Bug(
        "messages/headers.py",
        "        elif size <= left and number < HEADER_COUNT_LIMIT:\n",
        "        else:\n",
        "tests/messages/test_dead_letter.py::test_what_does_not_fit_into_headers_is_in_the_payload",
    ),
    "headers without bounds": Bug(
        "messages/rules.py",
        '        broken = find_unfit(batch.column("headers")) | broken\n',
        "        pass\n",
        "tests/messages/test_bounds.py::test_headers_have_bounds",
    ),
    "a dead letter has one form": Bug(
        "messages/dead_letter.py",
        "            if not error.rows:\n",
        "            if error:\n",
        "tests/spark/write/test_limits.py::test_each_message_arrives_or_is_a_dead_letter",
    ),
    "an id is sent as an operator": Bug(
        "stores/mongodb/keys.py",
        " and _can_be_key(key):\n",
        ":\n",
        "tests/stores/test_limits.py::test_an_id_that_no_message_has_finds_none",
    ),
    "a bucket is refused as a whole": Bug(
        "stores/base.py",
        "                if not (error.rows and has_buckets(records)):\n",
        "                if True:\n",
        "tests/stores/test_limits.py::test_a_bucket_that_a_database_cannot_hold_is_split",
    ),
    "a dead letter has no room for its reason": Bug(
        "stores/mongodb/store.py",
        "        return [moved if death is None else fit_letter(moved)]\n",
        "        return [moved]\n",
        "tests/stores/test_limits.py::test_a_document_without_room_for_the_reason_becomes_a_dead_letter",
    ),
    "committed when it is read": Bug(
        "spark/read/fetch.py",
        "        _check_fetched(store, options, fetch_range, rows)\n",
        "        _check_fetched(store, options, fetch_range, rows)\n        store.commit(queue, fetch_range.tag)\n",
        "tests/spark/read/test_plan.py::test_a_batch_is_read_as_often_as_wanted_and_held_until_it_is_done",
        worlds=True,
    ),
    "committed when it is planned": Bug(
        "spark/read/batches.py",
        "        self.lease_renewer.forget(tag)\n        self.busy = False\n",
        "        self.lease_renewer.forget(tag)\n        self._store.commit(self.queue, self.tag_after(end))\n",
        "tests/spark/read/test_consumer.py::test_after_a_full_batch_the_next_one_is_reserved_ahead",
        worlds=True,
    ),
    "a new epoch at each start": Bug(
        "spark/read/consumer.py",
        "        self.commit(start)\n",
        "        start = {**start, 'consumer': self.initial['consumer']}\n        self.commit(start)\n",
        "tests/spark/read/test_consumer.py::test_what_a_killed_process_had_reserved_ahead_is_the_next_batch",
        worlds=True,
    ),
    "an older checkpoint goes on": Bug(
        "stores/services/ownership.py",
        "            self._check_age(batch, standing.started)\n"
        "            if standing.number:  # a note of the first version does not say what was started\n"
        "                self._check_follows(batch, standing, noted)\n"
        "            return standing\n",
        "            return replace(standing, started=batch if batch.by else standing.started)\n",
        "tests/spark/read/test_consumer.py::test_an_older_checkpoint_is_refused_before_anything_changes",
        worlds=True,
    ),
    "a batch that the database never reserved goes on": Bug(
        "stores/services/ownership.py",
        "unknown = noted and batch.seq == started + 1 and",
        "unknown = False and",
        "tests/spark/read/test_went_back.py::test_a_copy_from_just_before_the_batch_in_flight",
    ),
    "a batch that nobody started counts": Bug(
        "stores/services/ownership.py",
        "        if started != batch:\n",
        "        if started is not None and started.seq > batch.seq:\n",
        "tests/spark/read/test_consumer.py::test_a_database_that_is_older_than_the_checkpoint_is_an_error",
    ),
    "all processes have one number": Bug(
        "stores/services/ownership.py",
        "                self.number, self.deaths = standing.number + 1, ",
        "                self.number, self.deaths = 1, ",
        "tests/spark/read/test_consumer.py::test_a_driver_that_stands_still_loses_nothing",
        worlds=True,
    ),
    "a batch has any bytes": Bug(
        "messages/buckets.py",
        "            if size + more > limit.bytes and (",
        "            if False and (",
        CONFORMANCE + "test_messages_that_grow_or_differ_end_the_batch_where_they_do",
    ),
    "the first batch is not limited": Bug(
        "spark/read/memory_limit.py",
        "        if limit >= ALL_ROWS:\n",
        "        if limit >= ALL_ROWS or self.rows == MAX_ROWS:\n",
        "tests/spark/read/test_memory.py::test_the_first_batch_fits_into_memory",
    ),
    "a bucket counts as compressed": Bug(
        "messages/buckets.py",
        "    if not is_bucket(id) or id.endswith(CONVERTED_SUFFIX):\n",
        "    if True:\n",
        CONFORMANCE + "test_a_bucket_counts_what_its_messages_take_and_is_split",
    ),
    "a log is not limited": Bug(
        "spark/read/log_cursor.py",
        "        if not pieces or max_bytes is None:\n",
        "        if True:\n",
        "tests/spark/read/test_memory.py::test_a_log_is_limited_by_the_bytes_of_its_messages",
    ),
    "deaths are not counted": Bug(
        "stores/services/ownership.py",
        "standing.deaths + died\n",
        "0\n",
        "tests/spark/read/test_deaths.py::test_a_batch_during_which_the_process_died_twice_is_split",
    ),
    "a clean stop is a death": Bug(
        "stores/services/ownership.py",
        "last.token != self.token and not standing.ended\n",
        "last.token != self.token\n",
        "tests/spark/read/test_deaths.py::test_clean_stops_do_not_count",
    ),
    "a reader whose driver died ends in order": Bug(
        "spark/read/driver_process.py",
        "        return (\n            os.getppid() == self._jvm\n",
        "        return True or (\n            os.getppid() == self._jvm\n",
        "tests/spark/read/test_driver_process.py::test_a_reader_ends_in_order_unless_its_driver_died",
    ),
    "a batch that kills is repeated with exactly-once": Bug(
        "spark/read/consumer.py",
        "            check_deaths([(batches, end)])\n",
        "            pass\n",
        "tests/spark/read/test_deaths.py::test_with_exactly_once_the_third_start_says_what_to_do_and_that_works",
    ),
    "a query reads any epoch": Bug(
        "stores/services/query_binding.py",
        '        if previous["consumer"] != binding.consumer:\n',
        "        if False:\n",
        "tests/spark/read/test_plan.py::test_a_checkpoint_that_has_lost_its_first_offset_is_refused",
    ),
    "held without an end before it is started": Bug(
        "spark/read/batches.py",
        "        return self._options.reserve_timeout or UNSTARTED_LEASE\n",
        "        return self._options.reserve_timeout\n",
        "tests/spark/read/test_consumer.py::test_until_it_is_started_a_batch_has_a_lease_that_ends",
    ),
    "a batch is held before it is started": Bug(
        "spark/read/consumer.py",
        "        batches.start(end)\n        if not is_dropped(",
        "        batches.hold(end)\n        batches.start(end)\n        if not is_dropped(",
        "tests/protocol/test_scenarios.py::test_the_code_follows_the_model",
    ),
    "what another process has started is given back": Bug(
        "spark/read/leftovers.py",
        "failed=False, include_endless=False):\n",
        "failed=False):\n",
        "tests/spark/read/test_consumer.py::test_a_late_release_leaves_what_another_process_has_started",
        worlds=True,
    ),
    "an abandoned epoch keeps what it has reserved": Bug(
        "spark/read/abandoned.py",
        "                released += self._give_back(held)\n",
        "                released += 0\n",
        "tests/spark/read/test_abandoned.py::"
        "test_what_a_dead_process_had_reserved_before_its_first_batch_comes_again",
        worlds=True,
    ),
    "each database decides alone": Bug(
        "stores/services/publishing.py",
        "            if ledgers.is_decided(batch, writer):\n"
        "                break\n"
        "            staged = {name: self._staged(name) for name in self._stores}\n"
        "            took, again = self._complete(ledgers, staged)\n",
        "            if all(one and one.batch >= batch for one in ledgers.found.values()):\n"
        "                break\n"
        "            staged = {name: self._staged(name) for name in self._stores}\n"
        "            took, again = False, 0\n",
        "tests/spark/write/test_several_databases.py::test_a_driver_that_dies_anywhere_loses_and_doubles_nothing",
        worlds=True,
    ),
    "commit without a fence": Bug(
        "stores/sqlite/store.py",
        "    held, values = _held_clause(queue, leases, ids)\n    if history:\n",
        "    held, values = _held_clause(queue, leases, ids)\n"
        "    if ids is not None:\n"
        "        held = 'queue = ? AND id IN (SELECT value FROM json_each(?))'\n"
        "        values = (_queue_id(db, queue), json.dumps(list(ids)))\n"
        "    if history:\n",
        CONFORMANCE + "test_a_lost_lease_commits_rolls_back_renews_moves_and_fetches_nothing",
        worlds=True,
    ),
    "commit without a fence in MongoDB": Bug(
        "stores/mongodb/store.py",
        "        held, history = HELD_BY_US._replace(query=held_by(tag)), self",
        "        held, history = HELD_BY_US._replace(query={} if ids else held_by(tag)), self",
        CONFORMANCE + "test_a_lost_lease_commits_rolls_back_renews_moves_and_fetches_nothing",
    ),
    "commit without a fence in Redis": Bug(
        "stores/redis/lua/common.lua",
        "      holds = score and (score == first or score == second)\n",
        "      holds = score\n",
        "tests/stores/redis/test_redis.py::test_what_others_took_all_at_once_is_lost",
    ),
    "SQLite sorts by id": Bug(
        "stores/sqlite/store.py",
        'free = "FROM message WHERE queue = ? AND lease IS NULL AND mature <= ? ORDER BY mature, rowid LIMIT ?"',
        'free = "FROM message WHERE queue = ? AND lease IS NULL AND mature <= ? ORDER BY mature, id LIMIT ?"',
        CONFORMANCE + "test_messages_of_one_push_come_in_its_order",
    ),
    "MongoDB trusts all ids": Bug(
        "stores/mongodb/places.py",
        "        grow = _are_generated(ids)\n",
        "        grow = True\n",
        CONFORMANCE + "test_messages_of_one_push_come_in_its_order",
    ),
    "Redis sorts by id": Bug(
        "stores/redis/scores.py",
        "        parts = parts + step if due == last_due else 0\n",
        "        parts = 0\n",
        CONFORMANCE + "test_messages_of_one_push_come_in_its_order",
    ),
    "MongoDB forgets the order of what is put back": Bug(
        "stores/mongodb/documents.py",
        "    if due != DUE:\n",
        "    if due is None:\n",
        CONFORMANCE + "test_pushes_that_are_put_back_with_a_new_due_time_keep_their_order",
    ),
    "a run forgets the parts of scores": Bug(
        "stores/redis/lua/claim.lua",
        "  if size == 0 or parts ~= mark then\n",
        "  if size == 0 then\n",
        "tests/stores/redis/test_runs.py::test_messages_in_the_order_of_their_push_are_in_as_few_runs_as_others",
    ),
    "a bucket leaves no room for its parts": Bug(
        "stores/redis/lua/common.lua",
        "  local parts = is_unordered_bucket(last) and rows_of(last)\n",
        "  local parts = is_unordered_bucket(last) and 1\n",
        "tests/stores/redis/test_runs.py::test_a_bucket_that_is_split_stays_in_its_place",
    ),
    "a bucket that is split loses its place": Bug(
        "stores/sqlite/store.py",
        '            places = places_up_to(db, last_place, batch.column("id").to_pylist())\n',
        "            places = None\n",
        "tests/stores/sqlite/test_places.py::test_a_bucket_is_split_in_its_place",
    ),
    "limit off by one": Bug(
        "stores/sqlite/store.py",
        "            values, size = (queue_id, min(now, before), limit.target), 0\n",
        "            values, size = (queue_id, min(now, before), limit.target + 1), 0\n",
        CONFORMANCE + "test_a_reserve_takes_the_first_in_order_up_to_its_limit",
    ),
    "the last queue of a request is missed": Bug(
        "stores/base.py",
        "        yield items[start : start + size]\n",
        "        yield items[start : start + size - 1]\n",
        CONFORMANCE + "test_no_queue_is_missed_between_two_requests",
    ),
    "a queue gets the sizes of another": Bug(
        "stores/mongodb/counting.py",
        'found[queues[one["queue"]]]',
        'found[queues[one["queue"] - 1]]',
        CONFORMANCE + "test_the_sizes_of_many_queues_are_those_of_each",
    ),
    "tries lost": Bug(
        "stores/sqlite/store.py",
        "    return change(db, release, held, values, due, int(failed))\n",
        "    return change(db, release, held, values, due, 0)\n",
        CONFORMANCE + "test_tries_grow_with_each_failure",
    ),
    "a dead letter without its reason": Bug(
        "stores/sqlite/store.py",
        "                    (dead_letter.failed, json.dumps(dead_letter.headers(queue, 0, now))),\n",
        "                    (dead_letter.failed, '{}'),\n",
        CONFORMANCE + "test_a_dead_letter_names_the_queue_it_comes_from",
    ),
    "failures are not noted": Bug(
        "spark/failures.py",
        "    spark.streams.addListener(listener)\n",
        "",
        "tests/spark/test_failures.py::test_the_dead_letter_has_the_exception_and_the_last_line_of_the_users_code",
    ),
    "a dead letter has the error of any run": Bug(
        "stores/services/poison.py",
        ' if failure and failure.value.get("run") == run else None\n',
        " if failure else None\n",
        "tests/spark/read/test_isolation.py::test_a_dead_letter_has_the_error_of_its_own_last_run",
    ),
    "a dead letter has the error of messages that are parked": Bug(
        "stores/services/poison.py",
        '        self._update(lambda _: {"error": None})',
        "        pass",
        "tests/spark/read/test_isolation.py::test_a_dead_letter_has_the_error_of_its_own_last_run",
    ),
    "a move in two steps": Bug(
        "stores/sqlite/store.py",
        '            db.execute("DELETE FROM message WHERE queue = ? AND rowid IN (SELECT row FROM moving)"',
        "            db.execute('COMMIT')\n            db.execute('BEGIN IMMEDIATE')\n"
        '            db.execute("DELETE FROM message WHERE queue = ? AND rowid IN (SELECT row FROM moving)"',
        "tests/stores/test_crash_points.py::test_an_operation_is_completed_whatever_request_fails",
    ),
    "a database that is away is not tried again": Bug(
        "stores/base.py",
        "            failed = [error]\n",
        "            raise error\n            failed = [error]\n",
        "tests/stores/redis/test_redis.py::test_operations_survive_a_server_that_is_killed_and_comes_back",
    ),
    "an exchange forgets a destination": Bug(
        "runner/exchange.py",
        "enumerate(zip(self._destinations, copy_columns, strict=True))",
        "enumerate(zip(self._destinations[:1], copy_columns[:1], strict=True))",
        "tests/runner/test_exchange.py::test_flows_to_all_dests_correctly",
    ),
    "an exchange that fails is not started again": Bug(
        "runner/running_step.py",
        "        return not self._stopping.wait(seconds)\n",
        "        return False\n",
        "tests/runner/test_exchange_life.py::test_exchanges_whose_server_is_down_are_tried_again_and_the_others_go_on",
    ),
    "SQLite does not wait for the disk": Bug(
        "stores/sqlite/store.py",
        'opened.execute("PRAGMA synchronous = FULL")',
        'opened.execute("PRAGMA synchronous = OFF")',
        "tests/chaos/test_durability.py::test_sqlite_has_on_disk_what_it_acknowledges",
    ),
    "a full Redis counts as one that is away": Bug(
        "stores/redis/failures.py",
        "    redis.exceptions.TryAgainError,\n",
        "    redis.exceptions.TryAgainError,\n    redis.exceptions.OutOfMemoryError,\n",
        "tests/stores/redis/test_redis.py::test_a_full_server_refuses_messages_and_lets_them_be_drained",
    ),
    "connections are kept after a failover": Bug(
        "stores/redis/store.py",
        "                self._connections.drop(client)\n",
        "                pass\n",
        "tests/stores/redis/test_failover.py::test_a_client_without_patience_gets_an_error_and_then_goes_on",
    ),
    "an error of a script hides that it comes from a replica": Bug(
        "stores/redis/failures.py",
        "|^ERR Error running script .*: -",
        "",
        "tests/stores/redis/test_failover.py::test_a_server_that_cannot_serve_now_is_away",
    ),
    "signals of the old master are listened to": Bug(
        "stores/redis/connections.py",
        "lambda: self._client is client",
        "lambda: True",
        "tests/stores/redis/test_failover.py::test_a_listener_follows_the_connections_of_its_store",
    ),
    "a replica that a Sentinel names is used": Bug(
        "stores/redis/connections.py",
        '    if role != b"master":\n',
        "    if False:\n",
        "tests/stores/redis/test_failover.py::test_a_replica_that_a_sentinel_names_is_refused",
    ),
    "a primary that is gone is an error": Bug(
        "stores/mongodb/store.py",
        "            isinstance(error, ConnectionFailure | WTimeoutError)\n",
        "            isinstance(error, WTimeoutError)\n",
        "tests/stores/mongodb/test_three_nodes.py::"
        "test_everything_comes_out_once_though_primaries_step_down_and_are_killed",
    ),
    "a primary that steps down is an error": Bug(
        "stores/mongodb/store.py",
        "            or (isinstance(error, ConfigurationError) and text.startswith(NO_SESSIONS))\n",
        "",
        "tests/stores/mongodb/test_three_nodes.py::test_a_write_that_a_change_of_the_primary_interrupts_is_repeated",
    ),
    "a client polls as if no signals came": Bug(
        "stores/services/signals.py",
        "(RARER_POLLS if self._relies_on_signals(queue) else 1)",
        "1",
        "tests/stores/services/test_idle.py::test_a_waiting_client_of_redis_sends_at_most_one_command_a_second",
    ),
    "a missed signal changes nothing": Bug(
        "stores/services/signals.py",
        "        self._missed_until[queue] = time.monotonic() + MISSED_SIGNAL_SECONDS\n",
        "",
        "tests/stores/services/test_idle.py::"
        "test_after_a_message_without_a_signal_a_client_polls_as_often_as_one_without_signals",
    ),
    "Extended JSON is read whatever comes back": Bug(
        "stores/mongodb/bson_json.py",
        "        return converted if not is_object and _round_trips(converted, plain) else plain\n",
        "        return plain if is_object else converted\n",
        "tests/stores/mongodb/test_bson_json.py::test_what_goes_in_comes_out",
    ),
    "a reference is reordered": Bug(
        "stores/mongodb/bson_json.py",
        '    if "$ref" in plain and "$id" in plain and not _round_trips(plain, plain):\n',
        "    if False:\n",
        "tests/stores/mongodb/test_bson_json.py::test_a_reference_in_another_order_is_refused",
    ),
    "a key becomes text beside a long number": Bug(
        "messages/json_text.py",
        " or not _has_text_keys(value):\n",
        ":\n",
        "tests/messages/test_message.py::test_what_json_cannot_hold_is_refused",
    ),
    "an owner in another PID namespace counts as dead": Bug(
        "stores/services/owner.py",
        '        namespaces = [os.readlink("/proc/self/ns/pid")]\n',
        "        namespaces: list[str] = []\n",
        "tests/stores/services/test_owner.py::test_a_second_query_is_refused_wherever_the_first_one_lives",
    ),
    "exactly-once on a Redis that throws messages away": Bug(
        "stores/services/eviction.py",
        "    elif exactly_once and not allowed:\n",
        "    elif exactly_once and allowed:\n",
        "tests/spark/test_eviction.py::test_a_sink_is_refused_before_it_writes",
    ),
    "the digest of a bucket is not checked": Bug(
        "messages/buckets.py",
        "digest if has_digest else None)",
        "None)",
        "tests/messages/test_damaged_buckets.py::test_a_damaged_bucket_is_refused_and_crashes_nothing",
    ),
    "a damaged stage is published": Bug(
        "messages/arrow_bytes.py",
        ", packed[-size:].hex())",
        ")",
        "tests/stores/support/test_damaged_buckets.py::test_a_damaged_part_of_a_stage_is_an_error_and_nothing_is_published",
    ),
    # --- REST ---
    "a head of any length": Bug(
        "rest/guard/protocol.py",
        "        if self._head_size > MAX_HEAD:\n            raise ValueError\n",
        "",
        "tests/rest/test_guard.py::test_a_head_has_a_limit",
    ),
    "a head of any length that the parser keeps": Bug(
        "rest/guard/protocol.py",
        "        if max(self._unreported, self._head_size) > MAX_HEAD:\n",
        "        if self._head_size > MAX_HEAD:\n",
        "tests/rest/test_guard.py::test_a_head_has_a_limit",
    ),
    "a head may take any time": Bug(
        "rest/guard/protocol.py",
        "            self._start_timer(HEAD_TIMEOUT, self._end_head)\n            return\n",
        "            return\n",
        "tests/rest/test_guard.py::test_a_head_that_does_not_come_ends",
    ),
    "a caller sends for ever after its answer": Bug(
        "rest/guard/protocol.py",
        "            if self._discarded > MAX_DISCARDED:\n",
        "            self._stop_timer()\n            if self._discarded > MAX_DISCARDED:\n",
        "tests/rest/test_guard.py::test_a_body_after_the_answer_ends",
    ),
    "the budget of bodies is used up": Bug(
        "rest/bodies.py",
        '        self._budget += getattr(request.state, "body_size", 0)\n',
        "",
        "tests/rest/test_guard.py::test_bodies_share_a_budget",
    ),
    "any charset": Bug(
        "rest/bodies.py",
        "    if charset not in CHARSETS:\n",
        "    if charset not in CHARSETS:\n        return charset\n    if not charset:\n",
        "tests/rest/test_guard.py::test_a_hostile_request_is_refused",
    ),
    "a look may read everything": Bug(
        "rest/looks/contents.py",
        "        with ReadBudget(LOOK_RECORDS, LOOK_BYTES, LOOK_SECONDS).applied():\n",
        "        if True:\n",
        "tests/rest/test_lanes.py::test_a_look_that_would_read_too_much_is_refused_with_a_reason",
    ),
    "a filtered look reads the whole index": Bug(
        "stores/redis/store.py",
        "            self._spend_snapshot(client, queue, wanted, first)\n",
        "",
        "tests/rest/test_lanes.py::test_a_filtered_look_ends_in_time_however_many_messages_there_are",
    ),
    "looks run in the process of the server": Bug(
        "rest/server.py",
        'look_process=os.name == "posix"',
        "look_process=False",
        "tests/rest/test_look_process.py::test_the_process_ends_with_its_server",
    ),
    "a server whose look process has ended looks no more": Bug(
        "rest/looks/process.py",
        "                if self._process is process:\n                    self._process = None\n",
        "                pass\n",
        "tests/rest/test_look_process.py::test_another_process_follows_one_that_has_ended",
    ),
    "callers take no turns": Bug(
        "rest/turns.py",
        "            self._waiting.move_to_end(who)\n",
        "",
        "tests/rest/test_lanes.py::test_callers_take_turns",
    ),
    "requests start as they come": Bug(
        "rest/entrance.py",
        "            if self._started < STARTED_TOGETHER and not self._turns:\n",
        "            if True:\n",
        "tests/rest/test_entrance.py::test_another_caller_starts_before_a_crowd",
    ),
    "one caller takes all threads of a lane": Bug(
        "rest/gate.py",
        "        return self._running_of[who] < self._limits.running_of_one\n",
        "        return True\n",
        "tests/rest/test_lanes.py::test_one_caller_does_not_take_all_places",
    ),
    "a route has no lane": Bug(
        "rest/lanes.py",
        "    if not isinstance(found, Lane):\n",
        "    if found is None:\n        return Lane.WRITE\n    if not isinstance(found, Lane):\n",
        "tests/rest/test_lanes.py::test_a_handler_without_a_lane_is_refused",
    ),
    "each scrape is computed for itself": Bug(
        "rest/scrapes.py",
        "        if self._running is None and (",
        "        if (",
        "tests/rest/test_scrapes.py::test_one_scrape_is_computed_at_a_time_and_others_get_the_last_one",
    ),
    "the metrics name all queues": Bug(
        "rest/looks/queue_metrics.py",
        "nlargest(self._most,",
        "nlargest(len(counted),",
        "tests/rest/test_scrapes.py::test_the_busiest_queues_have_their_names_and_the_others_are_summed",
    ),
    "a thread waits for each queue": Bug(
        "rest/service.py",
        "            return await self._watches.wait(bound.ns, bound.queue, seconds, caller)\n",
        "            return await self.run_in_thread(bound.store.wait, bound.queue, round(seconds * 1000))\n",
        "tests/rest/test_lanes.py::test_no_thread_waits_for_a_queue_and_a_message_comes_in_time",
    ),
    "any number of requests wait": Bug(
        "rest/waiters.py",
        " or self._waits_of[who] >= MAX_WAITS_OF_ONE:\n",
        ":\n",
        "tests/rest/test_lanes.py::test_requests_that_wait_have_a_limit",
    ),
    "a connection counts after its handshake": Bug(
        "rest/guard/acceptor.py",
        "            if not self._accepted.add(protocol, task.cancel) and self._context is not None:\n",
        "            if task.cancelled():\n",
        "tests/rest/test_tls.py::test_silent_connections_take_neither_files_nor_places",
    ),
    "answers that nobody reads stay": Bug(
        "rest/guard/unread.py",
        "        if left >= reader.left:\n",
        "        if left < 0:\n",
        "tests/rest/test_guard.py::test_an_answer_that_nobody_reads_ends",
    ),
    "answers that nobody reads take all memory": Bug(
        "rest/guard/unread.py",
        "sum(sizes.values()) > MAX_UNREAD and ",
        "not sizes and ",
        "tests/rest/test_guard.py::test_the_connection_that_has_not_read_for_the_longest_time_makes_room",
    ),
    "a silent connection keeps its place": Bug(
        "rest/guard/connections.py",
        "            if not self._silent:\n                return False\n",
        "            return False\n",
        "tests/rest/test_tls.py::test_silent_connections_take_neither_files_nor_places",
    ),
    "a handshake may take any time": Bug(
        "rest/guard/acceptor.py",
        '"ssl_handshake_timeout": HANDSHAKE_TIMEOUT',
        '"ssl_handshake_timeout": 90.0',
        "tests/rest/test_tls.py::test_silent_connections_take_neither_files_nor_places",
    ),
    "a page of another site uses the password": Bug(
        "rest/guard/auth.py",
        '        return _refuse_other_sites(request) if kind == "basic" else None\n',
        "        return None\n",
        "tests/rest/test_security.py::test_a_page_of_another_site_may_not_use_a_password_that_the_browser_keeps",
    ),
    "a viewer may change": Bug(
        "rest/routes.py",
        "            if not is_viewable and request.state.role",
        "            if is_viewable and request.state.role",
        "tests/rest/test_security.py::test_a_viewer_may_look_and_do_nothing_else",
    ),
    "two servers start the same exchange": Bug(
        "runner/runs.py",
        "owner.token != self._token and owner.is_alive(now):",
        "owner.token != self._token and owner.is_dead:",
        "tests/runner/test_declared.py::test_one_process_runs_a_step_until_it_gives_up_or_dies",
    ),
    "the exchange of a dead server stays its own": Bug(
        "runner/runs.py",
        "owner.token != self._token and owner.is_alive(now):",
        "owner.token != self._token:",
        "tests/runner/test_declared.py::test_one_process_runs_a_step_until_it_gives_up_or_dies",
    ),
    "a server that ends keeps its exchanges": Bug(
        "runner/shared_graph.py",
        "if one.ns not in self._declared.away:\n                    self._attempt(self._give_up",
        "if one.ns in self._declared.away:\n                    self._attempt(self._give_up",
        "tests/runner/test_shared_graph.py::test_one_runs_what_is_declared_and_the_other_goes_on_when_it_ends",
    ),
    "a removed exchange runs on": Bug(
        "runner/shared_graph.py",
        "            if now is None or (now.key, now.step) != (one.key, one.step):",
        "            if now is not None and (now.key, now.step) != (one.key, one.step):",
        "tests/runner/test_shared_graph.py::test_stop_start_and_remove_reach_the_server_that_runs_it",
    ),
    "a removed exchange keeps what it has reserved": Bug(
        "runner/settling.py",
        "            self._settle(store.url, queue, consumer, urls, written)\n",
        "            pass\n",
        "tests/runner/test_shared_graph.py::test_a_removed_exchange_holds_nothing_and_has_doubled_nothing",
    ),
    "suspects start beside the others": Bug(
        "runner/probation.py",
        "        if (self._current is not None or self._kept) and self._clock() < self._others_wait_until:",
        "        if self._current is not None and self._clock() < 0:",
        "tests/runner/test_probation.py::test_suspects_start_alone_one_after_the_other_and_then_all_others",
    ),
    "nobody is to blame": Bug(
        "runner/probation.py",
        "        if len(self._tried) != 1:",
        "        if len(self._tried) != 2:",
        "tests/runner/test_probation.py::test_the_one_on_probation_is_to_blame",
    ),
    "a server whose Spark has died runs nothing": Bug(
        "runner/shared_graph.py",
        "                    self._restart_spark()\n",
        "                    raise RuntimeError\n",
        "tests/runner/test_shared_graph_deaths.py::"
        "test_those_with_a_batch_in_work_start_alone_and_one_that_dies_twice_is_stopped",
    ),
    "a caller over HTTP may name a function of Python": Bug(
        "runner/declared.py",
        "[], Graph, FROM_HTTP)",
        "[], Graph)",
        "tests/runner/test_declared.py::test_a_declaration_over_http_has_the_rules_of_a_file_and_may_not_name_python",
    ),
    "any part of Spark is allowed": Bug(
        "runner/sql/tree.py",
        "        if not name.startswith(_CATALYST) or kind not in _LISTED:\n",
        "        if False:\n",
        "tests/runner/sql/test_rules.py::test_what_is_not_listed_is_refused_as_spark_reads_it",
    ),
    "the rules of expressions are not asked": Bug(
        "runner/sql/compile.py",
        "    called = check_tree(root, hidden)\n",
        "    called: set[str] = set()\n",
        "tests/runner/sql/test_rules.py::test_what_is_not_listed_is_refused_as_spark_reads_it",
    ),
    "an expression is parsed again": Bug(
        "runner/sql/compile.py",
        "    return ClassicColumn(_jvm(spark)",
        "    from pyspark.sql import functions as F\n    return F.expr(sql)\n    return ClassicColumn(_jvm(spark)",
        "tests/runner/sql/test_rules.py::test_spark_parses_a_text_once",
    ),
    "an expression may return anything": Bug(
        "runner/sql/compile.py",
        "    check_sizes(root, hidden)\n",
        "",
        "tests/runner/sql/test_sizes.py::test_a_result_that_may_be_large_is_refused",
    ),
    "text of a caller has no mark": Bug(
        "graph/parts.py",
        "                return ForeignSql(value, origin)\n",
        "                return value\n",
        "tests/runner/sql/test_origins.py::test_text_of_a_file_keeps_its_mark",
    ),
    "the parser of Spark remembers all that it has read": Bug(
        "runner/sql/parser_memory.py",
        "            if self._characters >= self._most:\n",
        "            if not self._most:\n",
        "tests/runner/sql/test_parser_memory.py::test_different_texts_fill_no_memory",
    ),
    "any pattern": Bug(
        "graph/patterns.py",
        "        _Scanner(pattern).scan()\n    except ValueError as mistake:\n        return str(mistake)\n",
        "        _Scanner(pattern).scan()\n    except ValueError:\n        return ''\n",
        "tests/graph/test_patterns.py::test_a_pattern_that_may_take_years_is_refused",
    ),
    "a second declaration replaces the first one": Bug(
        "runner/declared.py",
        '            added = entries.get(name, {}).get("declaration") is None\n',
        "            added = True\n",
        "tests/runner/test_declared.py::test_what_is_declared_is_there_for_all_servers_and_after_a_restart",
    ),
    "an id settles what is remembered, not what is held": Bug(
        "rest/handles.py",
        "            places.append((REST, [handle] if is_id(handle) else []))\n",
        "            places = places or [(REST, [handle] if is_id(handle) else [])]\n",
        "tests/rest/test_keuss_answers.py::test_an_id_settles_the_message_wherever_it_was_reserved",
    ),
    "a receipt of any consumer": Bug(
        "rest/receipts.py",
        '_TAG = re.compile(rf"{REST}(?:',
        '_TAG = re.compile(rf"[a-z-]+(?:',
        "tests/rest/test_queues.py::test_a_receipt_reaches_no_query",
    ),
    "a late receipt settles what another caller holds": Bug(
        "rest/receipts.py",
        "        tag, id = parsed\n        ids = found",
        "        tag, id = REST, parsed[1]\n        ids = found",
        "tests/rest/test_v1.py::test_a_late_receipt_touches_nothing_of_another",
    ),
    "what does not fit into an answer stays reserved": Bug(
        "rest/bound_queue.py",
        "            if found < rows:\n                tag = self._release_unread(tag, batches, lease)\n",
        "",
        "tests/rest/test_v1.py::test_what_is_too_much_at_once_stays_in_the_queue",
    ),
    "a hash of any cost": Bug(
        "rest/guard/passwords.py",
        "    if not 4 <= (cost := int(found[1])) <= MAX_COST:\n",
        "    cost = int(found[1])\n    if cost < 0:\n",
        "tests/rest/test_passwords.py::test_a_hash_that_cannot_be_checked_is_refused_at_the_start",
    ),
    "a right password is checked each time": Bug(
        "rest/guard/passwords.py",
        "            if (role := self._recall(digest)) is not None:\n                return role\n",
        "",
        "tests/rest/test_passwords.py::test_a_right_password_is_checked_once_and_a_wrong_one_each_time",
    ),
    "an unknown name is refused at once": Bug(
        "rest/guard/passwords.py",
        "            bcrypt.checkpw(password, self._nothing[self._cost])\n            return None\n",
        "            return None\n",
        "tests/rest/test_passwords.py::test_a_wrong_password_costs_the_same_for_each_name",
    ),
    "one address fills the queue of checks": Bug(
        "rest/guard/passwords.py",
        " or self._checks[caller] >= MAX_CHECKS_OF_CALLER:",
        ":",
        "tests/rest/test_passwords.py::"
        "test_a_flood_of_wrong_passwords_stops_nobody_who_is_remembered_and_no_other_address",
    ),
    "any number of passwords waits": Bug(
        "rest/guard/passwords.py",
        "        if self._checks.total() >= MAX_CHECKS or ",
        "        if ",
        "tests/rest/test_passwords.py::test_the_queue_of_checks_has_an_end_whoever_asks",
    ),
    "what SQL supplies is unpickled": Bug(
        "events/spark_source.py",
        "        self.options, pickled = find_work(self._given, self._works)\n"
        "        work: ExecutorWork = cloudpickle.loads(pickled)\n",
        "        import base64\n"
        "        work = cloudpickle.loads(base64.b64decode(self._given.get('work', '')))\n"
        "        self.options, _ = find_work(self._given, self._works)\n",
        "tests/events/test_work_tokens.py::"
        "test_anything_but_a_token_of_registered_work_is_refused_before_it_is_loaded",
    ),
    "a token takes other options": Bug(
        "events/work_tokens.py",
        "    if given:\n",
        "    if False:\n",
        "tests/events/test_work_tokens.py::"
        "test_anything_but_a_token_of_registered_work_is_refused_before_it_is_loaded",
    ),
    "a token reads the queue": Bug(
        "events/spark_source.py",
        "    def reader(self, schema: StructType) -> NoReturn:\n        raise _only_for_queries()\n",
        "    def reader(self, schema):\n"
        "        self.options, pickled = find_work(self._given, self._works)\n"
        "        return super().reader(schema)\n",
        "tests/events/test_work_tokens.py::test_a_token_reads_and_writes_no_messages",
    ),
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
