"""What an option of `format("queue_events")` can do: name work that this driver has registered, and nothing else."""

from __future__ import annotations

import base64
import os
import pickle
import secrets
import sys

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from spark_queue.errors import OptionError
from spark_queue.events import Events, Executor
from spark_queue.events.spark_query import ExecutorQuery
from spark_queue.events.spark_source import SOURCE_COLUMNS, EventSource, _source_of, register_source
from spark_queue.events.work_tokens import (
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    check_confs,
    register_work,
    registered_works,
    signing_key,
)
from spark_queue.stores.conformance.waiting import wait_until

S = "http://example.org/flights"
OPTIONS = {"url": "sqlite:///q.db", "queue": "q", "consumer": "executing.events"}


class Canary:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    for name in (KEY_VARIABLE, KEY_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def canary(tmp_path):
    """Where the work of a source must not have been."""
    return tmp_path / "canary"


def attacks(canary, token):
    """Options of a caller that has SQL, and perhaps a token that it has seen."""
    raw = pickle.dumps(Canary(canary))
    own = base64.b64encode(raw).decode()
    signature = secrets.token_hex(32)
    return {
        "nothing": {},
        "a pickle": {"work": own},
        "a pickle of cloudpickle": {"work": base64.b64encode(cloudpickle.dumps(Canary(canary))).decode()},
        "raw bytes": {"work": raw.decode("latin-1")},
        "a function": {"work": "os:system"},
        "a module of his": {"work": "canary_module:work"},
        "empty": {"work": ""},
        "another signature": {"work": signature},
        "upper case": {"work": token.upper()},
        "half a token": {"work": token[:32]},
        "a token and more": {"work": f"{token}{own}"},
        "a token and a dot": {"work": f"{token}.{own}"},
        "a line after it": {"work": f"{token}\n"},
        "a line before it": {"work": f"\n{token}"},
        "another queue": {"work": token, "queue": "payroll"},
        "another database": {"work": token, "url": "sqlite:////elsewhere.db"},
        "another consumer": {"work": token, "CONSUMER": "mine"},
        "a path": {"work": token, "path": "/etc"},
    }


NAMES = [*attacks("", "0" * 64)]


@pytest.mark.parametrize("attack", NAMES)
def test_anything_but_a_token_of_registered_work_is_refused_before_it_is_loaded(
    attack, canary, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "canary_module.py").write_text(f"open({str(canary)!r}, 'w')\n")
    work = register_work(OPTIONS, pickle.dumps(Canary(canary)))
    source = EventSource(attacks(canary, work.token)[attack], registered_works())
    for ask in (source.schema, lambda: source.streamReader(StructType())):
        with pytest.raises(OptionError) as refused:
            ask()
        assert work.token not in str(refused.value) and "queue_events" in str(refused.value)
    assert not canary.exists() and "canary_module" not in sys.modules


def test_a_source_without_registered_work_runs_nothing(canary):
    work = register_work(OPTIONS, pickle.dumps(Canary(canary)))
    with pytest.raises(OptionError, match="not a token of work that the driver of this session has registered"):
        EventSource({"work": work.token}).schema()
    assert not canary.exists()


def test_a_token_reads_and_writes_no_messages(canary):
    work = register_work(OPTIONS, pickle.dumps(Canary(canary)))
    source = EventSource({"WORK": work.token}, registered_works())
    for ask in (lambda: source.reader(StructType()), lambda: source.writer(StructType(), False),
                lambda: source.streamWriter(StructType(), False)):  # fmt: skip
        with pytest.raises(OptionError, match="is for queries of ExecutorQuery only"):
            ask()
    assert not canary.exists()


def test_a_token_is_for_one_url_queue_consumer_and_options(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "k" * 64)
    kept = [register_work(OPTIONS | change, b"") for change in (
        {}, {"url": "sqlite:///r.db"}, {"queue": "r"}, {"consumer": "executing.r"}, {"maxTries": "9"})]  # fmt: skip
    assert len({one.token for one in kept}) == 5
    assert register_work(OPTIONS, b"").token == kept[0].token, "a restarted driver has the same"
    monkeypatch.setenv(KEY_VARIABLE, "l" * 64)
    other = register_work(OPTIONS, b"")
    assert other.token != kept[0].token, "another key, another token"


def test_a_token_of_another_driver_is_refused(monkeypatch, canary):
    """Also if it has the same key: this one has not registered that work."""
    monkeypatch.setenv(KEY_VARIABLE, "k" * 64)
    token = register_work(OPTIONS | {"queue": "theirs"}, b"").token  # which is not kept
    mine = register_work(OPTIONS, pickle.dumps(Canary(canary)))
    assert mine.digest in registered_works()
    with pytest.raises(OptionError, match="not a token of work"):
        EventSource({"work": token}, registered_works()).schema()


def test_what_spark_gets_has_neither_the_key_nor_tokens(monkeypatch):
    key = secrets.token_hex(32)
    monkeypatch.setenv(KEY_VARIABLE, key)
    work = register_work(OPTIONS, b"")
    made = cloudpickle.dumps(_source_of(registered_works()))
    source = cloudpickle.dumps(EventSource({}, registered_works()))
    assert work.digest.encode() in made
    assert key.encode() not in made + source and work.token.encode() not in made + source
    assert work.token not in repr(work) and OPTIONS["url"] not in repr(work)


def test_work_is_forgotten_with_its_query():
    work = register_work(OPTIONS | {"queue": "short"}, b"")
    digest = work.digest
    newer = register_work(OPTIONS | {"queue": "short"}, b"newer")
    del work
    assert registered_works()[digest][1] == b"newer"
    del newer
    assert digest not in registered_works()


# --- the key --------------------------------------------------------------------------------------


def test_without_a_key_each_process_has_its_own():
    assert len(signing_key()) == 32 and signing_key() == signing_key()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o606, 0o660, 0o610, 0o777])
def test_a_file_that_others_may_use_is_refused(tmp_path, monkeypatch, mode):
    file = tmp_path / "key"
    file.write_text("secret" * 20)
    file.chmod(mode)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(file))
    with pytest.raises(OptionError, match=rf"its mode is {mode:o}.*chmod 600") as refused:
        signing_key()
    assert "secret" not in str(refused.value)
    with Events(f"sqlite:///{tmp_path}/q.db", "q") as events, pytest.raises(OptionError, match="chmod 600"):
        ExecutorQuery(events, str(tmp_path / "checkpoint"))
    for right in (0o600, 0o400):
        file.chmod(right)
        assert signing_key() == b"secret" * 20


@pytest.mark.parametrize(
    ("content", "wrong"),
    [("", "at least 32 characters"), ("\n", "at least 32"), ("short\n", "at least 32"), (b"\xff" * 40, "not UTF-8"),
     (None, "No such file"), ("folder", "Is a directory|not a file")],
)  # fmt: skip
def test_a_file_without_a_key_is_refused(tmp_path, monkeypatch, content, wrong):
    file = tmp_path / "key"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(0o600)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(file))
    with pytest.raises(OptionError, match=wrong):
        signing_key()


def test_a_pipe_is_no_key(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe", 0o600)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "pipe"))
    with pytest.raises(OptionError, match="it is not a file"):
        signing_key()


def test_two_keys_or_a_short_one_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(OptionError, match="at least 32 characters") as refused:
        signing_key()
    assert "short" not in str(refused.value)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    with pytest.raises(OptionError, match="are both set"):
        signing_key()


@pytest.mark.parametrize(
    "conf", [f"spark.executorEnv.{KEY_VARIABLE}", f"spark.yarn.appMasterEnv.{KEY_VARIABLE}", KEY_VARIABLE.lower()]
)
def test_a_key_in_a_conf_is_refused(conf):
    with pytest.raises(OptionError, match="SET and Spark's web page show to everybody") as refused:
        check_confs({"spark.app.name": "x", conf: "secret" * 9})
    assert "secret" not in str(refused.value)
    check_confs({f"spark.executorEnv.{KEY_FILE_VARIABLE}": "/run/secrets/key"})


# --- with Spark -----------------------------------------------------------------------------------


def select(spark, source, columns):
    """Read a source as SQL can."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW stolen {columns} {source}")
    spark.sql("SELECT * FROM stolen").collect()


def test_sql_runs_no_code(spark, canary):
    work = register_work(OPTIONS, cloudpickle.dumps(Canary(canary)))
    register_source(spark)
    pickled = base64.b64encode(cloudpickle.dumps(Canary(canary))).decode()
    for columns, options in (
        ("", {"work": pickled}),
        (f"({SOURCE_COLUMNS})", {"work": pickled}),
        ("", {"work": work.token, "queue": "payroll"}),
        (f"({SOURCE_COLUMNS})", {"work": work.token}),
    ):
        listed = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
        with pytest.raises(PySparkException, match=r'OptionError: .*format\("queue_events"\)'):
            select(spark, f"USING queue_events OPTIONS ({listed})", columns)
    assert not canary.exists()


@pytest.mark.full
def test_two_queries_of_a_session_do_not_disturb_each_other(spark, sqlite_url, name, tmp_path, monkeypatch):
    key = secrets.token_hex(32)
    monkeypatch.setenv(KEY_VARIABLE, key)

    def note(event, config):
        return config

    def events(queue):
        return Events(sqlite_url, queue, executors=[Executor(S, "t", note, config=f"of-{queue[-1]}")])

    with events(f"{name}a") as a, events(f"{name}b") as b:
        first, second = (ExecutorQuery(one, str(tmp_path / one.name), parallel=1) for one in (a, b))
        running = [one.start(spark) for one in (first, second)]
        for query, one in ((first, a), (second, b)):
            id = one.create(S, "t")
            wait_until(lambda one=one, id=id: one.status([id])[id] == f"of-{one.name[-1]}", 120)
            running.pop(0).stop()  # and it starts again, when the other one has registered its work
            running.append(query.start(spark))
        id = a.create(S, "t")
        wait_until(lambda: a.status([id]) == {id: "of-a"}, 120)
        for started in running:
            started.stop()
        shown = str(spark.sql("SET -v").collect()) + str(spark.conf.getAll)
        assert first._registered and first._registered.token not in shown and key not in shown
