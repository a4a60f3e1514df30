"""No password shows: in no error, its facts, its traceback or its pickle, in no repr and no log.

A secret begins and ends with a mark and has hard characters between. So it cannot occur by
accident, and a part of it is found too. URLs are well-formed, malformed as people write them, or
have the secret in their query.
Each example tries one secret in many of them.
"""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import sys
import traceback
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from itertools import product
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote_plus

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from spark_queue import Queue
from spark_queue.admin import doctor
from spark_queue.cli import app
from spark_queue.cli.params import URL_VARIABLE
from spark_queue.errors import QueueError
from spark_queue.events.executors import Executor
from spark_queue.events.queue import Events
from spark_queue.events.settings import EventSettings
from spark_queue.events.spark_worker import ExecutorWork
from spark_queue.graph.loader import parse_graph
from spark_queue.graph.model import Destination, Exchange, Graph, Namespace, Place
from spark_queue.graph.processor import Processor
from spark_queue.graph.rendering import dot, to_json
from spark_queue.graph.validation import check_graph
from spark_queue.options.masking import HIDDEN, mask, mask_words, masked_repr, scrub
from spark_queue.options.parts import Database
from spark_queue.options.push import PushOptions
from spark_queue.options.roles import parse_options
from spark_queue.options.snapshot import SnapshotOptions
from spark_queue.options.url import StoreUrl
from spark_queue.rest.settings import Settings
from spark_queue.stores import STORES, open_store, resolve_options, store_class
from spark_queue.stores.named import NamedStores
from spark_queue.stores.redis.store import RedisStore
from spark_queue.stores.services import eviction
from tests.registered import embedded

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate URI option")  # by pymongo, of its own options

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))
job = importlib.import_module("_job")

MARKS = ONE, _ = "Zqx7Kd", "Wvb3Jm"

#: What makes a password hard to find in a URL.
HARD = [
    *"@:/?#%&=+;, \n\r\t\\'\"[]{}$|*é✈\u2028", "%40", "%3A", "%0A", "%2F", "%25", "://", "@host/", ":1@", "?layout=",
    "?ns=a&", "&w=",
]  # fmt: skip

#: Where a secret, `{s}`, stands in a URL. `{scheme}`: one of the registry's.
LOGINS = [
    "{scheme}://user:{s}@127.0.0.1:1/0", "{scheme}://user:{s}@host", "{scheme}://:{s}@host/0",
    "{scheme}://u:{s}@h/db?w=1", "{scheme}://user:{s}@h1:1,h2:2/db?replicaSet=rs0", "{scheme}://{s}@host/0",
    "{scheme}://me%40corp:{s}@[::1]:1/0", "{scheme}://{s}:@host/0", "{scheme}://a:b:{s}@h/db?layout=rfq",
    "{scheme}://user:{s}@h/db?tlsCAFile=/no.pem",
]  # fmt: skip
QUERIES = [
    f"{{scheme}}://host/0?{before}{name}{{s}}{after}"
    for before, after in (("", ""), ("layout=x&", "&w=1"), ("appName=me&", ";x=1"), ("w=majority&", "@h"))
    for name in (
        "password=", "authMechanismProperties=AWS_SESSION_TOKEN:", "authMechanismProperties=AWS_SESSION_TOKEN%3A",
        "authmechanismproperties=SERVICE_NAME:x,AWS_SESSION_TOKEN:", "%70assword=", "tlsCertificateKeyFilePassword=",
        "proxyPassword=", "ssl_password=", "username=u&password=", "pasword=", "secret=", "pwd=",
    )
]  # fmt: skip
MALFORMED = [
    "{scheme}:/user:{s}@host", "{scheme}//user:{s}@host/db", "user:{s}@host", "{scheme}:user:{s}@host", "{s}",
    ":{s}@host/0", "{scheme}://user:{s}", "{scheme}://user:{s}@", "{scheme}://user:{s}@host:port/db",
    "{scheme}://user:{s}@host:99999/0", " {scheme}://user:{s}@host/db", "'{scheme}://user:{s}@host/db'",
    "{scheme}://user:{s}@host/db\n", "//user:{s}@host", "{scheme}://a:b@h/0,{scheme}://user:{s}@host/0",
    "url={scheme}://user:{s}@host", "{scheme}: //user:{s}@host", "{scheme}://user:12?{s}@host/db",
    "{scheme}://user:1/{s}@host/db", "{scheme}://user:12?w=1&{s}@host/db", "{scheme}://user:{s}@host/db#x",
    "{scheme}://user:{s}@ho st/db", "{scheme}:\\\\user:{s}@host",
]  # fmt: skip
PATHS = ["{scheme}:///user:{s}@host/db", "{scheme}:////user:{s}@host/0"]  # of an embedded store: a file, which shows

ANYWHERE = [*LOGINS, *QUERIES, *MALFORMED]
MISPLACED = [*LOGINS, *(one for one in MALFORMED if ":{s}@" in one)]  # URLs that are found where none belongs

secrets = st.builds(
    lambda parts, first, last, form: form(first + "".join(parts) + last),
    st.lists(st.sampled_from(HARD) | st.sampled_from(HARD) | st.characters(codec="utf-8"), max_size=4),
    st.sampled_from(MARKS),
    st.sampled_from(MARKS),
    st.sampled_from(
        [str, str, str, quote, lambda one: quote(one, safe=""), quote_plus, lambda one: quote(quote(one))]
    ),
)


def urls(*shapes, step):
    """Return lists of URLs with one secret: each `step`-th of these shapes, for all schemes."""
    known = [
        shape.replace("{scheme}", scheme)
        for shape, scheme in product([*shapes, *PATHS], STORES)
        if shape in shapes or not embedded(scheme)
    ]

    def made(secret, first):
        return [one.replace("{s}", secret) for one in known[first::step] if not is_another_part(one, secret)]

    return st.builds(made, secrets, st.integers(0, step - 1))


def is_another_part(shape, secret):
    """Return whether the secret, at this place, is a user with a password, or has a host in it."""
    return ("/{s}" in shape and ":" in secret) or (shape.endswith(":{s}") and "@" in secret)


# --- where nothing may show -----------------------------------------------------------------------


def found_in(text):
    """Return the marks of a secret that a text holds, in whatever way it is quoted."""
    forms = [text]
    while (plain := unquote_plus(forms[-1])) != forms[-1]:
        forms.append(plain)
    return {mark for mark in MARKS for form in forms if mark.lower() in form.lower()}


def check_no_secret(*texts):
    for text in texts:
        assert not found_in(str(text)), text
        assert not found_in(repr(text)), text


@contextmanager
def refused():
    """Check an error of ours, if one is raised here: its text, facts, traceback and pickle."""
    try:
        yield
    except QueueError as error:
        check_no_secret(error, error.facts, "".join(traceback.format_exception(error)))
        again = pickle.loads(pickle.dumps(error))
        check_no_secret(again, again.facts)


def opens(url):
    """Return whether a URL is sound, so that its server would be connected to."""
    try:
        open_store(url).close()
    except QueueError:
        return False
    return True


@pytest.fixture(autouse=True)
def no_secret_in_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    yield
    check_no_secret(*(one.getMessage() for one in caplog.get_records("call")))


# --- URLs -----------------------------------------------------------------------------------------


@settings(max_examples=300)
@example(urls=[f"user:{ONE}://{ONE}@host", f"redis://h/0?password={ONE}&w={ONE}", f"redis://u:x?layout={ONE}@h/0"])
@given(urls=urls(*ANYWHERE, step=20))
def test_a_masked_url_has_no_secret(urls):
    for url in urls:
        check_no_secret(mask(url))
        with refused():
            address = StoreUrl.parse(url)
            check_no_secret(address)
            for layout in ("rfq", "mongo"):
                with refused():
                    address.with_layout(layout)
                with refused():
                    address.check_parameters(layout, ())


@settings(max_examples=50)
@given(urls=urls(*MISPLACED, step=20))
def test_what_looks_like_a_url_is_masked_where_none_belongs(urls):
    for url in urls:
        check_no_secret(masked_repr(url), mask_words(f"no {url!r} and no {url}", [f"--x={url}", url]))


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("mongodb://user:secret@host/db", "mongodb://user:***@host/db"),
        ("mongodb://user:se@cret@host/db", "mongodb://user:***@host/db"),
        ("mongodb://user:se\ncret@h1:27017,h2/db?replicaSet=rs0", "mongodb://user:***@h1:27017,h2/db?replicaSet=rs0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("redis://host/0?password=secret&x=1", "redis://host/0?password=***&…"),
        ("redis://host/0?db=1&ssl_password=secret", "redis://host/0?db=***&…"),
        ("rediss://u:secret@[::1]:7000/1?ssl_ca_certs=/ca.pem", "rediss://u:***@[::1]:7000/1?ssl_ca_certs=/ca.pem"),
        ("sqlite:////data/q.db", "sqlite:////data/q.db"),
        ("sqlite:////home/me@corp/queue 1.db", "sqlite:////home/me@corp/queue 1.db"),
        ("mongodb://host/db?replicaSet=rs0", "mongodb://host/db?replicaSet=rs0"),
        ("mongodb://%2Ftmp%2Fmongodb-27017.sock/db", "mongodb://%2Ftmp%2Fmongodb-27017.sock/db"),
        ("mongodb://h/db?w=1&authMechanismProperties=A:s", "mongodb://h/db?w=1&authMechanismProperties=***"),
        ("mongodb://h/db?stats=k_stats&signals=k-signal", "mongodb://h/db?stats=k_stats&signals=k-signal"),
        ("mongodb://h/db?signals=redis%3A%2F%2F%3Asecret%40h%2F0&w=1", "mongodb://h/db?signals=***&…"),
        ("mongodb://h/db?stats=mongodb%3A%2F%2Fh%2Fsecret", "mongodb://h/db?stats=***"),
        # In the following, the part that is hidden may be the password.
        ("redis://secret@host/0", "redis://***@host/0"),
        ("redis://secret:@host/0", "redis://***:***@host/0"),
        ("mongodb://host:1/db?appname=a@b", "mongodb://…"),
        ("mongodb://user:se/cret@host/db", "mongodb://…"),
        ("mongodb://user:secret", "mongodb://…"),
        ("redis:////user:secret@host/0", "redis://…"),
        ("redis:/u:p@h", HIDDEN),
        ("mongodb//u:p@h", HIDDEN),
        ("u:p@h", HIDDEN),
        ("secret", HIDDEN),
    ],
)
def test_what_is_masked_of_a_url(url, masked):
    assert mask(url) == masked


def test_a_word_of_a_command_line_is_masked_where_it_is_quoted():
    words = ["--urll=mongodb://u:secret@h/db", "redis:/u:se\ncret@h", "a=b"]
    said = mask_words(f"unknown {words[0]!r}, extra {words[1]!r}, {words[1]}, {words[2]}", words)
    assert said == f"unknown {HIDDEN!r}, extra {HIDDEN!r}, {HIDDEN}, a=b"


# --- options and stores ---------------------------------------------------------------------------


@settings(max_examples=100)
@given(urls=urls(*ANYWHERE, step=50), role=st.sampled_from(["stream", "snapshot", "push", "settle"]))
def test_options_show_no_secret(urls, role):
    for url in urls:
        for raw in (
            {"url": url}, {"url": url, "layout": "rfq"}, {"urls": json.dumps({"a": url})}, {"urls": url},
            {"urls": json.dumps({"a": url}), "inputs": json.dumps({"a": {"queue": "x", "ns": "a"}})}, {"Url ": url},
        ):  # fmt: skip
            with refused():
                queue = {} if "inputs" in raw else {"queue": "q"}
                options = parse_options(queue | {"consumer": "c"} | raw, role)
                check_no_secret(options, resolve_options(options))


@settings(max_examples=50)
@given(urls=urls(*MISPLACED, step=20), role=st.sampled_from(["stream", "push", "settle"]))
def test_a_url_in_the_wrong_option_does_not_show(urls, role):
    for url in urls:
        for raw in (
            {"maxTries": url}, {"operation": url}, {url: "1"}, {"layout": url}, {"mode": url}, {"consumer": url},
            {"inputs": json.dumps({"a": {"queue": ["x", url]}})}, {"inputs": json.dumps({"a": url, url: "x"})},
        ):  # fmt: skip
            with refused():
                parse_options({"url": "redis://h/0"} | raw, role)


@settings(max_examples=200)
@example(
    urls=[f"mongodb://user:12?{ONE}=x@host/db", f"mongodb://h/db?authMechanismProperties=SERVICE_NAME:b,{ONE}:x"]
)
@example(urls=[f"mongodb://h/db?authMechanismProperties=SERVICE_NAME:b&{ONE}=x"])
@given(urls=urls(*ANYWHERE, step=20))
def test_stores_show_no_secret(urls):
    for url in urls:
        with refused():
            store_class(url)
        with refused(), open_store(url, retry_timeout=0) as store:
            check_no_secret(store, Queue(store, "q"), mask(store.url))
            with refused():
                check_no_secret(Events(store, "q"))


@settings(max_examples=30)
@given(urls=urls(*ANYWHERE, step=20))
def test_a_doctor_shows_no_secret(urls):
    for url in urls:
        if not opens(url):  # else it would be waited for
            check_no_secret(*doctor._check_database(url))


@settings(max_examples=50)
@example(urls=[f"mongodb://host/db?authMechanismProperties=AWS_SESSION_TOKEN:{ONE}&w={ONE}"], form=str)
@given(
    urls=urls(*LOGINS[:5], *QUERIES[:6], step=10), form=st.sampled_from([str, repr, json.dumps, unquote_plus, quote])
)
def test_what_a_driver_says_is_scrubbed(urls, form):
    for url in urls:
        if not mask(url).endswith(("//…", HIDDEN)):  # else no driver gets it
            login, _, query = url.partition("://")[2].partition("?")
            said = [login.rpartition("@")[0].partition(":")[2], *(one.partition("=")[2] for one in query.split("&"))]
            check_no_secret(
                scrub(f"unknown command AUTH, with args beginning with: {' '.join(map(form, said))}", url)
            )


def test_an_error_of_a_driver_that_quotes_a_password_is_scrubbed_and_no_cause(monkeypatch):
    """Servers without AUTH and HELLO repeat what these were called with."""
    monkeypatch.setattr(eviction, "check_on_open", False)  # which would connect
    with RedisStore(f"redis://u:{MARKS[0]}@host/0") as store:
        said = redis.ResponseError(f"unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'u' '{MARKS[0]}'")
        with pytest.raises(QueueError) as caught, store._connection():
            raise said
    with refused():
        raise caught.value
    assert caught.value.facts["url"] == "redis://u:***@host/0"
    assert "with args beginning with: '3' 'AUTH' 'u' '***'" in str(caught.value)


# --- graphs, servers and what Spark carries to its workers ----------------------------------------


@settings(max_examples=30)
@given(urls=urls(*ANYWHERE, step=50))
def test_graphs_show_no_secret(urls):
    for url in urls:
        given = json.dumps(url)
        step = "src: a/q, dst: [a/r]"
        for text in (
            f"namespaces: {{a: {given}}}", f"namespaces: {{a: {{url: {given}}}}}", "namespaces: {a: '${URL}'}",
            f"namespaces: [{given}]", f"namespaces: {{a: {{urll: {given}}}}}", given,
            f"namespaces: {{a: {given}}}\nexchanges: {{x: {{src: a/q, dst: [b/r]}}}}",
            f"namespaces: {{a: {given}}}\nexchanges: {{x: {{{step}, options: {{url: {given}}}}}}}",
            f"namespaces: {{a: {given}}}\nexchanges: {{x: {{{step}, options: [{given}]}}}}",
            f"namespaces: {{a: {{url: {given}, options: {{urls: {given}}}}}}}\nmax_hops: {given}",
        ):  # fmt: skip
            with refused():
                graph = parse_graph(text, "graph.yaml", {"URL": url}.__getitem__)
                check_no_secret(graph, graph.namespaces, dot(graph).source, to_json(graph))
        with refused():
            graph = Graph({"a": Namespace(url)}, {"x": Exchange(Place("q", "a"), [Destination("r")])})
            check_no_secret(graph, check_graph(graph))


@settings(max_examples=30)
@example(urls=[f"user:{ONE}://x@host/q"])
@given(urls=urls(*MISPLACED, step=30))
def test_a_url_in_the_wrong_place_of_a_graph_does_not_show(urls):
    for url in urls:
        wrong = json.dumps(url)
        for text in (
            f"namespaces: {{{wrong}: a}}", f"namespaces: {{a: {{{wrong}: 1}}}}", f"{{{wrong}: 1}}",
            f"namespaces: {{a: redis://h/0}}\nexchanges: {{x: {{src: {wrong}, dst: [b]}}}}",
            f"namespaces: {{a: redis://h/0}}\nexchanges: {{{wrong}: {{src: a, dst: [c/b]}}}}",
            f"namespaces: {{{wrong}: redis://h/0}}\nexchanges: {{x: {{src: a/b, dst: [c/b]}}}}",
        ):  # fmt: skip
            with refused():
                parse_graph(text, "graph.yaml", str)


@settings(max_examples=50)
@given(urls=urls(*ANYWHERE, step=30))
def test_a_server_shows_no_secret(urls):
    for url in urls:
        with refused():
            made = Settings(graph=Graph({"a": Namespace(url)}), events="a/q")
            check_no_secret(made, made.options)


def test_what_travels_to_workers_shows_no_secret():
    url = f"redis://u:{MARKS[0]}@h/0"
    own = {"key": MARKS[0]}
    options = SnapshotOptions(database=Database(url=url), queue="q")
    check_no_secret(
        options,
        PushOptions(database=Database(url="", urls={"a": url})),
        StoreUrl.parse(url),
        NamedStores({"a": url}),
        Executor("a:b", "c:d", print, config=own),
        ExecutorWork(url, "q", "c", (), EventSettings(), "me", "here"),
        Processor(opts=own),
        Graph({"a": url}, system=own),  # type: ignore[dict-item]  # as it may be given
    )
    assert repr(options).startswith("SnapshotOptions(database=Database(url='redis://u:***@h/0', urls=None, ")


# --- the command line -----------------------------------------------------------------------------

#: Calls with a URL, `U`, where it belongs and where it does not.
CALLS = [
    "size U", "pop U q", "pop q U", "U size", "U", "size U U", "push U", "peek U q --limit x", "serve --url U",
    "serve --url a=U", "version U", "serve --url=U", "size --url=U", "--layout rfq size U", "--layout U size redis://h/0",
    "graph U", "event create U q a b", "event U", "deadletter list U", "serve --graph U", "size", "peek q",
    "peek redis://h/0 q --limit U", "serve --url redis://h/0 --events U", "doctor --x=U",
]  # fmt: skip


@settings(max_examples=40)
@example(urls=[f"redis:/user:{ONE}@host"], call="peek redis://h/0 q --limit U")
@example(urls=[f"redis:/user:{ONE}@host", f"redis://user:{ONE}"], call="serve --graph U")
@example(urls=[f"sqlite://user:{ONE}"], call="--layout U size redis://h/0")
@given(urls=urls(*(one for one in MALFORMED if one != "{s}"), step=100), call=st.sampled_from(CALLS))
def test_the_command_line_shows_no_secret(urls, call):
    for url in urls:
        if "\0" in url or opens(url):  # what can be opened would be waited for
            continue
        words = [one.replace("U", url) for one in call.split(" ")]
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(URL_VARIABLE, raising=False)
            if "U" not in call:
                patch.setenv(URL_VARIABLE, url)
            done = CliRunner().invoke(app, words, prog_name="spark-queue")
        assert isinstance(done.exception, SystemExit), (words, done.exception)
        check_no_secret(done.output)


@settings(max_examples=30)
@given(urls=urls(*(one for one in MALFORMED if one != "{s}"), step=100))
def test_a_job_shows_no_secret(urls):
    for url in urls:
        for words in (["--urll=" + url], ["--url", url, "--option", url], ["--master", "x", url], ["--json=" + url]):
            with redirect_stderr(StringIO()) as said, suppress(SystemExit):
                job.Parser("job", "", "").parse(["--queue", "q", *words])
            check_no_secret(said.getvalue())
