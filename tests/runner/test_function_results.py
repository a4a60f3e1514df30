"""Functions of links and processors that return no valid message, and their context."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from spark_queue.graph.link_function import Forward
from spark_queue.graph.model import Link, Place, Processor
from spark_queue.graph.processor import Input
from spark_queue.graph.processor_function import Output
from spark_queue.messages.columns import build_messages
from spark_queue.messages.json_text import load_json
from spark_queue.runner.link import _FunctionCalls
from spark_queue.runner.processor_function import ProcessorFunction, RowCalls

MOMENT = datetime(2026, 1, 31, tzinfo=UTC)

NO_TEXT = "text with half a surrogate pair is not Unicode"
WRONG = {
    "a set": ({"payload": {"a": {1}}}, "payload.a: set has no form in JSON; use a list"),
    "half a pair": ({"payload": {"a": "\ud800"}}, f"payload.a: {NO_TEXT}"),
    "a header": ({"payload": {}, "headers": {"h": "\ud800"}}, f"headers.h: {NO_TEXT}"),
    "a number": ({"payload": {}, "headers": {"h": 1}}, "headers.h: int must be text"),
}


def messages():
    batch = build_messages("a", ["1", "2"], [b'{"n":1}', b'{"n":2}'], ["json"] * 2, [{}, {}], [0, 0], [0, 0])
    return batch.set_column(2, "payload", batch.column("payload").cast(pa.string()))


@pytest.mark.parametrize(("made", "expected"), WRONG.values(), ids=WRONG)
def test_a_link_tries_the_message_again_and_the_others_go_on(made, expected):
    def process(one):
        return Forward(**made) if one.payload["n"] == 1 else Forward({"n": 2})

    (batch,) = _FunctionCalls(Link(Place("a"), [Place("b")], process=process))(iter([messages()]))
    first, second = batch.to_pylist()
    assert (first["outcome"], second["outcome"], second["payload"]) == ("rollback", "move", '{"n":2}')
    assert first["reason"].startswith(f"MessageError: {expected}")


def test_a_link_whose_error_is_no_text_says_so(caplog):
    caplog.set_level(logging.CRITICAL, "spark_queue")  # pytest-xdist cannot pass on a log with half a surrogate pair

    def process(one):
        raise ValueError("no \ud800")

    (batch,) = _FunctionCalls(Link(Place("a"), [Place("b")], process=process))(iter([messages()]))
    assert batch.column("reason").to_pylist() == ["ValueError: no ?"] * 2


@pytest.mark.parametrize(("made", "expected"), WRONG.values(), ids=WRONG)
def test_a_wrong_result_goes_to_the_error_queue_and_the_others_go_on(made, expected):
    def function(process, found):
        return {"b": Output(**made) if found["a"].payload["n"] == 1 else {"n": 2}}

    processor = Processor(function, in_={"a": Input("a")}, out={"b": Place("b")}, errors=Place("e"), rows=True)
    rows = pa.RecordBatch.from_arrays(
        [messages().to_struct_array(), pa.array(["x", "y"])], names=["a", "delivery_hash"]
    )
    (batch,) = RowCalls(ProcessorFunction("p", processor, None), processor)(iter([rows]))
    first, second = batch.to_pylist()
    assert [first["queue"], second["queue"], second["payload"]] == ["e", "b", '{"n":2}']
    assert load_json(first["payload"].encode())["cause"]["cause"].startswith(expected)


def test_a_system_that_is_a_function_is_called_once_for_all_tasks_of_a_process():
    calls = []

    def system():
        calls.append(1)
        return {"limit": 60}

    functions = [ProcessorFunction(name, Processor("m:f"), system) for name in ("p", "q")]
    tasks = [cloudpickle.loads(cloudpickle.dumps(one)) for one in [*functions, *functions]]
    first, *others = [one.context().system for one in [*functions, *tasks]]
    assert (first, len(calls)) == ({"limit": 60}, 1)
    assert all(one is first for one in others)
    assert ProcessorFunction("p", Processor("m:f"), lambda: {"limit": 7}).context().system == {"limit": 7}
