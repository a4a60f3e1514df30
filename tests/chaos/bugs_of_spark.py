"""Bugs in Spark's reader and writer, and in options."""

from __future__ import annotations

from tests.chaos.bug import Bug

BUGS: dict[str, Bug] = {
    "a consumer that was taken over goes on": Bug(
        "spark/read/batches.py",
        "        self.lease_renewer.check_newest(batch_of(end))\n",
        "",
        "tests/spark/read/test_consumer.py::test_a_consumer_that_was_taken_over_commits_nothing",
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
        'zone=zone_of(payload_zone(content) or "UTC").info',
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
        "tests/spark/read/test_prefetch.py::test_after_a_full_batch_the_next_one_is_reserved_ahead",
        worlds=True,
    ),
    "a new epoch at each start": Bug(
        "spark/read/consumer.py",
        "        self.commit(start)\n",
        "        start = {**start, 'consumer': self.initial['consumer']}\n        self.commit(start)\n",
        "tests/spark/read/test_prefetch.py::test_what_a_killed_process_had_reserved_ahead_is_the_next_batch",
        worlds=True,
    ),
    "the first batch is not limited": Bug(
        "spark/read/memory_limit.py",
        "        if limit >= ALL_ROWS:\n",
        "        if limit >= ALL_ROWS or self.rows == MAX_ROWS:\n",
        "tests/spark/read/test_memory.py::test_the_first_batch_fits_into_memory",
    ),
    "a log is not limited": Bug(
        "spark/read/log_cursor.py",
        "        if not pieces or max_bytes is None:\n",
        "        if True:\n",
        "tests/spark/read/test_memory.py::test_a_log_is_limited_by_the_bytes_of_its_messages",
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
    "held without an end before it is started": Bug(
        "spark/read/batches.py",
        "        return self._options.reserve_timeout or UNSTARTED_LEASE\n",
        "        return self._options.reserve_timeout\n",
        "tests/spark/read/test_started.py::test_until_it_is_started_a_batch_has_a_lease_that_ends",
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
        "tests/spark/read/test_started.py::test_a_late_release_leaves_what_another_process_has_started",
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
    "failures are not noted": Bug(
        "spark/failures.py",
        "    spark.streams.addListener(listener)\n",
        "",
        "tests/spark/test_failures.py::test_the_dead_letter_has_the_exception_and_the_last_line_of_the_users_code",
    ),
    "a struct with intervals loses its arrays of NULL": Bug(
        "spark/json_write.py",
        "    message = pa.record_batch([column]",
        "    return column.view(_readable_type(column.type))\n    message = pa.record_batch([column]",
        "tests/spark/test_json_write.py::test_an_interval_of_months_is_written_though_pyarrow_has_no_array_of_it",
    ),
    "each task of a batch read reads all": Bug(
        "spark/read/snapshot.py",
        "check_json=False, span=partition.span",
        "check_json=False, span=Span()",
        "tests/spark/read/test_busy_spans.py::test_no_message_comes_twice_and_none_that_stays_is_missed",
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
    "a command has a dead-letter queue of its own": Bug(
        "admin/consume.py",
        "dead_letter_queue=dead or NOT_GIVEN",
        "dead_letter_queue=NOT_GIVEN",
        "tests/stores/support/test_damaged_faces.py::"
        "test_each_face_sends_it_to_the_dead_letter_queue_and_keeps_the_history",
    ),
    "a server has a dead-letter queue of its own": Bug(
        "rest/service.py",
        "store.queue(queue, stream_policy(options))",
        "store.queue(queue, stream_policy(options).replace(dead_letter_queue=queue + '.dead'))",
        "tests/stores/support/test_damaged_faces.py::"
        "test_each_face_sends_it_to_the_dead_letter_queue_and_keeps_the_history",
    ),
    "events are stored as the setting says": Bug(
        "events/settings.py",
        'EVENT_RECORDS = QueuePolicy(layout="single")',
        "EVENT_RECORDS = QueuePolicy()",
        "tests/stores/test_queue_policy.py::test_events_are_single_whatever_the_setting_of_their_queue",
    ),
}
