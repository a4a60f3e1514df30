"""Bugs in stores and messages."""

from __future__ import annotations

from tests.chaos.bug import CONFORMANCE, Bug

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
    "ledger, and never published again": Bug(
        "stores/services/publishing.py",
        "        return found.published + self._finish(found.ledgers, decided)\n",
        "        return found.published + (self._finish(found.ledgers, decided) if found.is_own else 0)\n",
        "tests/spark/write/test_publish.py::test_a_driver_that_died_after_its_decision_is_finished_by_the_next",
        worlds=True,
    ),
    "rows that come again are not compared": Bug(
        "stores/services/publishing.py",
        "            self._check_rows(found.ledgers, decided, hashes, writer)\n",
        "            pass\n",
        "tests/spark/write/test_replay_check.py::test_a_batch_that_comes_again_with_other_rows_is_refused",
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
        f"{CONFORMANCE}test_messages_that_no_consumer_has_seen_keep_their_tries",
    ),
    "what was reserved ahead counts a try in MongoDB": Bug(
        "stores/mongodb/documents.py",
        'tries = {"$cond": [IS_UNSEEN, "$tries", add_tries(1)]}',
        "tries = add_tries(1)",
        f"{CONFORMANCE}test_messages_that_no_consumer_has_seen_keep_their_tries",
    ),
    "what was reserved ahead counts a try in Redis": Bug(
        "stores/redis/lua/common.lua",
        "find(tag, '/unseen$') and 0 or 1",
        "1",
        f"{CONFORMANCE}test_messages_that_no_consumer_has_seen_keep_their_tries",
    ),
    "a damaged record ends its reader": Bug(
        "stores/support/damaged.py",
        "        except READ_ERRORS as error:\n            damaged[number]",
        "        except ZeroDivisionError as error:\n            damaged[number]",
        "tests/stores/support/test_damaged.py::test_one_odd_record_stops_no_reader",
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
    "an older checkpoint goes on": Bug(
        "stores/services/ownership.py",
        "            self._check_age(batch, standing.started)\n"
        "            if standing.number:  # a note of the first version does not say what was started\n"
        "                self._check_follows(batch, standing, noted)\n"
        "            return standing\n",
        "            return replace(standing, started=batch if batch.by else standing.started)\n",
        "tests/spark/read/test_older_checkpoints.py::test_an_older_checkpoint_is_refused_before_anything_changes",
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
        "tests/spark/read/test_older_checkpoints.py::test_a_database_that_is_older_than_the_checkpoint_is_an_error",
    ),
    "all processes have one number": Bug(
        "stores/services/ownership.py",
        "                self.number, self.deaths = standing.number + 1, ",
        "                self.number, self.deaths = 1, ",
        "tests/spark/read/test_older_checkpoints.py::test_a_driver_that_stands_still_loses_nothing",
        worlds=True,
    ),
    "a batch has any bytes": Bug(
        "messages/buckets.py",
        "            if size + more > limit.bytes and (",
        "            if False and (",
        CONFORMANCE + "test_messages_that_grow_or_differ_end_the_batch_where_they_do",
    ),
    "a bucket counts as compressed": Bug(
        "messages/buckets.py",
        "    if not is_bucket(id) or id.endswith(CONVERTED_SUFFIX):\n",
        "    if True:\n",
        CONFORMANCE + "test_a_bucket_counts_what_its_messages_take_and_is_split",
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
    "a query reads any epoch": Bug(
        "stores/services/query_binding.py",
        '        if previous["consumer"] != binding.consumer:\n',
        "        if False:\n",
        "tests/spark/read/test_plan.py::test_a_checkpoint_that_has_lost_its_first_offset_is_refused",
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
        "tests/stores/redis/test_steps.py::test_what_others_took_all_at_once_is_lost",
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
    "a bucket that is split loses its place": Bug(
        "stores/sqlite/store.py",
        '            places = places_up_to(db, last_place, batch.column("id").to_pylist())\n',
        "            places = None\n",
        "tests/stores/sqlite/test_places.py::test_a_bucket_is_split_in_its_place",
    ),
    "limit off by one": Bug(
        "stores/sqlite/store.py",
        "    values, size = (queue, due, limit.target), 0\n",
        "    values, size = (queue, due, limit.target + 1), 0\n",
        CONFORMANCE + "test_a_reserve_takes_the_first_in_order_up_to_its_limit",
    ),
    "the last queue of a request is missed": Bug(
        "stores/base.py",
        "        yield items[start : start + size]\n",
        "        yield items[start : start + size - 1]\n",
        CONFORMANCE + "test_no_queue_is_missed_between_two_requests",
    ),
    "a repeated reserve takes more": Bug(
        "stores/redis/lua/claim.lua",
        "if is_first then\n  for i, range",
        "if is_first and partitions == 0 then\n  for i, range",
        CONFORMANCE + "test_a_repeat_after_a_lost_answer_returns_the_same",
    ),
    "each partition is reserved alone": Bug(
        "stores/mongodb/store.py",
        "            return int(self._collection(queue).bulk_write(changes, session=session).modified_count)\n",
        "            one_by_one = (self._collection(queue).bulk_write([one], session=session) for one in changes)\n"
        "            return sum(one.modified_count for one in one_by_one)\n",
        CONFORMANCE + "test_a_reserve_of_many_partitions_has_the_price_of_one",
    ),
    "a summary lists its queues each time": Bug(
        "stores/mongodb/marks.py",
        "        return time.monotonic() - read < HINTED_AGE and read > self._expired\n",
        "        return False\n",
        CONFORMANCE + "test_a_summary_of_many_queues_has_the_price_of_one",
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
        "tests/stores/redis/test_server.py::test_operations_survive_a_server_that_is_killed_and_comes_back",
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
        "tests/stores/redis/test_server.py::test_a_full_server_refuses_messages_and_lets_them_be_drained",
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
        "(self.limits.rarer_polls if self._relies_on_signals(queue) else 1)",
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
    "a filtered look reads the whole index": Bug(
        "stores/redis/scanning.py",
        "            spend(len(examined.found))\n",
        "",
        "tests/rest/test_lanes.py::test_a_look_that_would_read_too_much_is_refused_with_a_reason",
    ),
    "a page examines all messages before it": Bug(
        "stores/sqlite/scanning.py",
        "{source} AND {within}{until}",
        "{source} AND iif({within}, 1, 0){until}",
        f"{CONFORMANCE}test_a_later_page_costs_no_more_than_the_first",
    ),
    "a page is not cut where others are unknown": Bug(
        "stores/redis/scanning.py",
        "            found = [one for one in found if one <= last]\n",
        "",
        f"{CONFORMANCE}test_the_pages_have_all_messages_once_in_order",
    ),
    "a page begins with the bucket in which the last one ended": Bug(
        "stores/support/scanning.py",
        "            first.pass_first(inside.done)\n",
        "",
        "tests/stores/test_conformance.py::TestBuckets::test_the_pages_have_all_messages_once_in_order",
    ),
    "a cursor of another queue is used": Bug(
        "stores/support/cursors.py",
        "        if queue != digest_of(scope):\n",
        "        if not queue:\n",
        f"{CONFORMANCE}test_a_cursor_that_is_damaged_or_of_another_queue_is_refused",
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
    "a damaged record leaves no history": Bug(
        "stores/queue.py",
        "            history=self.history,\n            before_settle",
        "            history=0,\n            before_settle",
        "tests/stores/support/test_damaged_faces.py::"
        "test_each_face_sends_it_to_the_dead_letter_queue_and_keeps_the_history",
    ),
    "a layout is that of the queue, whatever was asked": Bug(
        "stores/queue.py",
        "        return self.store.push(self.name, batch, layout=given_or(self.policy.layout, None))\n",
        "        return self.store.push(self.name, batch)\n",
        "tests/stores/test_queue_policy.py::test_two_queues_of_one_store_write_as_each_was_asked",
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
}
