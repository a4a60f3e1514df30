"""Bugs in the services over HTTP, in graphs and in events."""

from __future__ import annotations

from tests.chaos.bug import Bug

BUGS: dict[str, Bug] = {
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
        "        with ReadBudget(*LOOK_BUDGET).applied():\n",
        "        if True:\n",
        "tests/rest/test_lanes.py::test_a_look_that_would_read_too_much_is_refused_with_a_reason",
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
        " or self._waits_of[who] >= self._most_of_one:\n",
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
        "tests/rest/test_guard.py::test_an_answer_that_is_not_read_ends",
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
        "        if (self._current is not None or self._kept) and self._clock() < 0:",
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
        ".consume(limit, max_bytes, tag=tag)",
        ".consume(limit, tag=tag)",
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
        "test_a_flood_of_wrong_passwords_stops_no_remembered_caller_and_no_other_address",
    ),
    "any number of passwords waits": Bug(
        "rest/guard/passwords.py",
        "        if self._checks.total() >= MAX_CHECKS or ",
        "        if ",
        "tests/rest/test_passwords.py::test_the_queue_of_checks_is_bounded_for_all_callers",
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
    "a message of the time at which a range ends is in it": Bug(
        "stores/services/log/finding.py",
        "if due >= moment:",
        "if due > moment:",
        "tests/spark/read/test_spans.py::test_a_range_of_a_log_by_times_and_by_positions",
    ),
}
