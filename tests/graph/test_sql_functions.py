"""The SQL of files and of callers over HTTP: listed functions, and nothing that reads more than the message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_queue.errors import GraphError
from spark_queue.graph.loader import parse_graph
from spark_queue.graph.model import Destination, Exchange, Graph, Namespace
from spark_queue.graph.parts import FROM_HTTP, SourceLocation
from spark_queue.graph.sql_functions import FUNCTIONS, sql_mistake
from spark_queue.graph.validation import build_graph, check_graph
from tests.pages import blocks

ALLOWED = [
    "true",
    "headers['class'] = 'late'",
    "payload:dep_delay::int > 60 and not (payload:carrier = 'UA')",
    "payload:select = 'x' and payload:a.values[0] = 'y'",
    "headers['select'] = 'with'",
    "exists(array(1, 2), x -> x > 1)",
    "transform(array(1), (x, i) -> x + i)[0] = 1",
    "extract(year from mature) = 2013 and trim(both ' ' from headers['a']) = ''",
    "CASE WHEN (true) THEN (1) ELSE (2) END = 1",
    "headers['a'] in ('x', 'y') or headers['a'] like any ('x%', 'y%')",
    "named_struct('delay', 5, 'tries', 1)",
    "struct(interval '5' minutes as delay)",
    "payload:x::decimal(10,2) > 1 and cast(payload:x as varchar(20)) = 'a'",
    "date_trunc('hour', mature) < current_timestamp()",
]

REFUSED = {
    "reflect('java.lang.System', 'exit', 1)": "reflect() is not one of them",
    "`reflect`('java.lang.System', 'exit', 1)": "reflect() is not one of them",
    "java_method ('java.lang.System', 'exit', 1)": "java_method() is not one of them",
    "try_reflect('a', 'b') is null": "try_reflect() is not one of them",
    "system.builtin.reflect('a', 'b')": "builtin.reflect() is not one of them",
    "IDENTIFIER('reflect')('a', 'b')": "IDENTIFIER() is not one of them",
    "from_protobuf(payload, 'a', '/etc/passwd') is null": "from_protobuf() is not one of them",
    "my_function(payload)": "my_function() is not one of them",
    "input_file_name() = ''": "input_file_name() is not one of them",
    "lowr(headers['a']) = 'x'": "did you mean 'lower'",
    "exists(select 1 from t)": "without a query",
    "1 in (select id from json.`/etc/hosts`)": "without a query",
    "(from t) = 1": "without a query",
    "(table t) is null": "without a query",
    "(values (1)) = 1": "without a query",
    "(with a as (select 1) select * from a) = 1": "without a query",
    "'a' -- '\n = reflect('a', 'b')": "without comments",
    "/* ' */ reflect('a', 'b') /* ' */": "without comments",
    "r'\\' = reflect('a', 'b') = '": "Spark SQL",
    "r'\\' = reflect('a', 'b') or '' = ''": "without raw strings",
    "env => env.msg.hdrs.class == 'late'": "not JavaScript",
    "(env) => true": "not JavaScript",
    "function (env) { return true; }": "not JavaScript",
    "async env => true": "not JavaScript",
    "'a": "Spark SQL",
}


@pytest.mark.parametrize("text", ALLOWED)
def test_an_expression_over_the_message_is_allowed(text):
    assert sql_mistake(text) == ""


@pytest.mark.parametrize("text", REFUSED)
def test_what_reaches_beyond_the_message_is_refused(text):
    assert REFUSED[text] in sql_mistake(text)


def graph_text(**destination):
    to = {"queue": "b", **destination}
    return json.dumps({"namespaces": {"a": "sqlite:///q.db"}, "exchanges": {"e": {"src": "q", "dst": [to]}}})


@pytest.mark.parametrize(
    ("place", "destination"),
    [
        ("selector", {"selector": "reflect('a', 'b')"}),
        ("set.payload", {"set": {"payload": "reflect('a', 'b')"}}),
        ("set.headers.h", {"set": {"headers": {"h": "reflect('a', 'b')"}}}),
        ("set.state.s", {"set": {"state": {"s": "reflect('a', 'b')"}}}),
    ],
)
def test_each_expression_of_a_file_is_checked(place, destination):
    with pytest.raises(GraphError) as refused:
        parse_graph(graph_text(**destination), "g.json", {}.__getitem__)
    assert f"line 1, exchange 'e', destination 1, {place}: must be made of listed functions" in str(refused.value)


def test_a_program_may_use_any_function():
    to = Destination("b", selector="my_function(payload)")
    graph = Graph({"a": Namespace("sqlite:///q.db")}, exchanges={"e": Exchange("q", [to])})
    assert check_graph(graph).exchanges["e"].dst[0].selector == "my_function(payload)"


def test_a_file_may_name_a_function_of_python_and_a_caller_over_http_may_not():
    text = graph_text(selector="os.path:exists")
    assert parse_graph(text, "g.json", {}.__getitem__).exchanges["e"].dst[0].selector == "os.path:exists"
    with pytest.raises(GraphError, match="a caller over HTTP may not name a function of Python"):
        build_graph(json.loads(text), SourceLocation(), [], Graph, FROM_HTTP)
    fields = json.loads(graph_text(selector="payload:a"))
    assert build_graph(fields, SourceLocation(), [], Graph, FROM_HTTP).exchanges["e"].dst[0].selector == "payload:a"
    fields = json.loads(graph_text(selector="state:a"))
    assert build_graph(fields, SourceLocation(), [], Graph, FROM_HTTP).exchanges["e"].dst[0].selector == "state:a"


def test_the_page_lists_the_functions():
    page = (Path(__file__).parents[2] / "docs" / "exchanges.md").read_text()
    lists = [text.split() for kind, text in blocks(page.split("### What selectors may call")[1]) if kind == "text"]
    assert lists[0] == sorted(FUNCTIONS)
