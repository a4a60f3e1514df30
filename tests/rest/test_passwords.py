"""Users whose passwords are kept as bcrypt hashes: who may call, what it costs, and what others notice of it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import bcrypt
import httpx
import pytest

from spark_queue.errors import OptionError
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest.app import create_app
from spark_queue.rest.errors import Overloaded
from spark_queue.rest.guard import passwords
from spark_queue.rest.guard.credentials import CallerRole, Credentials
from spark_queue.rest.guard.passwords import PasswordChecker, PasswordTooLong, is_crypt_hash
from spark_queue.rest.settings import Settings
from tests.rest.in_process import calling
from tests.serving import basic, serving

#: The hash of "x": parameters of tests are the same in all workers.
HASH = "$2y$04$duYlpxNsgYvxX.fRLpEkQutpETSyU84DhbMOhy50nhp.ivyOf7w66"


def hashed(password, cost=4, kind="2y"):
    """As `htpasswd -B` writes it."""
    made = bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()
    return f"${kind}{made[3:]}"


def checker(*users):
    return PasswordChecker(Credentials.from_texts(users=users).hashed)


def roles(made, *secrets, caller="1.2.3.4"):
    async def ask():
        return [await made.role_of(*one.split(":", 1), caller) for one in secrets]

    return asyncio.run(ask())


# --- who may call ---------------------------------------------------------------------------------


def test_users_of_a_file_of_htpasswd_may_call(tmp_path):
    bob, eve = f"bob:{hashed('b', kind='2a')}", f"viewer eve:{hashed('look', kind='2b')}"
    lines = [f"ann:{hashed('pässword:1')}", eve, bob, "old:clear-password"]
    (tmp_path / "users").write_text("\n".join(lines) + "\n")
    (tmp_path / "users").chmod(0o600)
    with serving(tmp_path, "--url", f"a=sqlite:///{tmp_path}/q.db", "--users-file", tmp_path / "users") as server:
        for who in ("ann:pässword:1", "bob:b", "old:clear-password"):
            assert httpx.put(f"{server.url}/q/a/q", content="1", headers=basic(who)).status_code == 200, who
        assert httpx.get(f"{server.url}/q", headers=basic("eve:look")).status_code == 200
        assert httpx.put(f"{server.url}/q/a/q", content="1", headers=basic("eve:look")).status_code == 403
        wrong = ["ann:wrong", "ann:", "ann", "eve:b", "nobody:look", ":", "old:wrong", "ann:pässword:1 "]
        for who in [*wrong, *lines[:3], f"ann:{'x' * 73}"]:  # a hash is no password
            refused = httpx.get(f"{server.url}/q", headers=basic(who))
            assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic"), who
        assert "1 password in clear text; make a bcrypt hash with: htpasswd -nB" in server.said
        for secret in ("clear-password", "pässword", "$2y$"):
            assert secret not in server.said + httpx.get(f"{server.url}/openapi.json", headers=basic("bob:b")).text


def test_a_password_that_is_too_long_for_bcrypt_gets_a_plain_answer(tmp_path):
    graph = Graph({"a": Namespace(f"sqlite:///{tmp_path}/q.db")})
    limit = "é" * 36  # 72 bytes
    credentials = Credentials.from_texts(users=[f"ann:{hashed(limit)}", f"long:{'x' * 100}"])
    with calling(create_app(Settings(graph=graph, credentials=credentials))) as client:
        assert client.get("/q", headers=basic(f"ann:{limit}")).status_code == 200
        assert client.get("/q", headers=basic(f"long:{'x' * 100}")).status_code == 200, "clear ones may be longer"
        for name in ("ann", "nobody"):
            refused = client.get("/q", headers=basic(f"{name}:{limit}x"))
            assert refused.status_code == 401 and "more than 72 bytes" in refused.json()["detail"]


def test_a_password_with_a_nul_is_another_one():
    assert roles(checker(f"ann:{hashed('a')}"), "ann:a\0b", "ann:a", "ann:a\0") == [None, CallerRole.OPERATOR, None]


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "wrong"),
    [
        ("$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", "not bcrypt"), ("{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=", "not bcrypt"),
        ("{SSHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=", "not bcrypt"), ("$1$abc$def", "not bcrypt"),
        ("$5$salt$hash", "not bcrypt"), ("$6$rounds=5000$salt$hash", "not bcrypt"), ("$y$j9T$x$y", "not bcrypt"),
        ("$argon2id$v=19$m=1$x$y", "not bcrypt"), ("$2y$10$short", "damaged"), (f"{HASH}x", "damaged"),
        (HASH.replace("$2y$", "$2x$"), "damaged"), (HASH.replace("$04$", "$4$"), "damaged"), ("$2$10$x", "damaged"),
        (HASH.replace("$04$", "$15$"), "a cost of 15"), (HASH.replace("$04$", "$31$"), "a cost of 31"),
        (HASH.replace("$04$", "$00$"), "a cost of 0"), (HASH.replace("$04$", "$99$"), "a cost of 99"),
    ],
)  # fmt: skip
def test_a_hash_that_cannot_be_checked_is_refused_at_the_start(secret, wrong, tmp_path):
    for line in (f"ann:{secret}", f"viewer ann:{secret}"):
        (tmp_path / "users").write_text(f"bob:clear\n{line}\n")
        with pytest.raises(OptionError, match=f"--users-file .*user 2 .*{wrong}.*htpasswd -nB") as refused:
            Credentials.read({}, users_file=tmp_path / "users")
        assert secret not in str(refused.value)


def test_a_hash_of_crypt_is_refused_in_a_file(tmp_path):
    (tmp_path / "users").write_text("ann:rqXexS6ZhobKA\n")
    with pytest.raises(OptionError, match=r"user 1 has a hash of crypt\(3\)") as refused:
        Credentials.read({}, users_file=tmp_path / "users")
    assert "rqXexS6ZhobKA" not in str(refused.value)
    for clear in ("supersecret12", "rqXexS6ZhobKAx", "correct-horse", "RQXEXS6ZHOBKA", "rqXexS6Zhob-A"):
        assert not is_crypt_hash(clear)


def test_clear_passwords_give_a_warning_and_hashes_do_not(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    file = tmp_path / "users"
    for lines, text in (
        ([f"ann:{hashed('x')}"], None),
        (["ann:secret-one", "viewer b:secret-two"], "2 passwords"),
    ):
        file.write_text("\n".join(lines))
        file.chmod(0o600)
        caplog.clear()
        Credentials.read({}, users_file=file)
        assert bool(caplog.text) == bool(text) and (text or "") in caplog.text and "secret-" not in caplog.text


def test_a_user_with_a_hash_has_one_line(tmp_path):
    for second in (f"ann:{hashed('y')}", "ann:clear", f"viewer ann:{hashed('y')}"):
        with pytest.raises(OptionError, match="user 'ann' has a hash and another line"):
            Credentials.from_texts(users=[f"ann:{hashed('x')}", second])
    (tmp_path / "users").write_text(f"ann:{hashed('x')}\n")
    with pytest.raises(OptionError, match="leave one out"):
        Credentials.read({"SPARK_QUEUE_REST_USER": f"ann:{hashed('y')}"}, users_file=tmp_path / "users")


def test_nothing_secret_is_in_a_repr():
    made = Credentials.from_texts(users=[f"ann:{hashed('x')}"])
    assert "$2" not in repr(made) and made


# --- what it costs --------------------------------------------------------------------------------


@pytest.fixture
def checks(monkeypatch):
    """The checks that were made: the cost of each."""
    made = []
    real = bcrypt.checkpw

    def check(password, against):
        made.append(int(against[4:6]))
        return real(password, against)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    return made


def test_a_right_password_is_checked_once_and_a_wrong_one_each_time(checks):
    made = checker(f"ann:{hashed('x')}")
    assert roles(made, *["ann:x"] * 5) == [CallerRole.OPERATOR] * 5 and len(checks) == 1
    assert roles(made, *["ann:y"] * 3, "ann:x") == [None, None, None, CallerRole.OPERATOR] and len(checks) == 4
    assert b"x" not in list(made._remembered), "a keyed digest"
    other = checker(f"ann:{hashed('x')}")
    roles(other, "ann:x")
    assert list(other._remembered) != list(made._remembered), "each server has its own key"


def test_what_is_remembered_ends_and_is_bounded(checks, monkeypatch):
    monkeypatch.setattr(passwords, "MAX_REMEMBERED_PASSWORDS", 2)  # the server makes the object
    made = checker(*(f"u{n}:{hashed('x')}" for n in range(4)))
    roles(made, "u0:x", "u1:x", "u0:x", "u2:x")  # u1 was not used for the longest time
    assert len(made._remembered) == 2 and len(checks) == 3
    roles(made, "u0:x", "u2:x")
    assert len(checks) == 3
    monkeypatch.setattr(passwords, "REMEMBERED_FOR", 0.0)  # the server makes the object
    roles(made, "u3:x", "u3:x")
    assert len(checks) == 5


def test_a_wrong_password_costs_the_same_for_each_name(checks):
    made = checker(f"ann:{hashed('x', 4)}", f"bob:{hashed('x', 6)}")
    for name in ("ann", "bob", "nobody", ""):
        checks.clear()
        roles(made, f"{name}:wrong")
        assert sum(2**cost for cost in checks) == 2**6, name


@pytest.fixture
def gate(monkeypatch):
    """Checks of a password that begins with "slow" wait until it opens."""
    opened, real = threading.Event(), bcrypt.checkpw

    def check(password, against):
        if password.startswith(b"slow"):
            assert opened.wait(60)
        return real(password, against)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    yield opened
    opened.set()


def test_the_same_password_at_once_is_checked_once(gate, checks):
    made = checker(f"ann:{hashed('slow')}")

    async def ask():
        asked = [asyncio.create_task(made.role_of("ann", "slow", "1.2.3.4")) for _ in range(100)]
        await asyncio.sleep(0)
        asked[0].cancel()  # a caller that leaves does not end the check of the others
        gate.set()
        return await asyncio.gather(*asked[1:])

    assert asyncio.run(ask()) == [CallerRole.OPERATOR] * 99
    assert len(checks) == 1 and not made._running and not made._checks


def test_a_flood_of_wrong_passwords_stops_no_remembered_caller_and_no_other_address(gate):
    made = checker(f"ann:{hashed('x')}", f"bob:{hashed('y')}")

    async def ask():
        assert await made.role_of("ann", "x", "9.9.9.9")
        flood = [asyncio.create_task(made.role_of("ann", f"slow{n}", "6.6.6.6")) for n in range(500)]
        await asyncio.sleep(0)
        began = time.monotonic()
        assert await made.role_of("ann", "x", "9.9.9.9") == CallerRole.OPERATOR
        assert await made.role_of("ann", "x", "6.6.6.6") == CallerRole.OPERATOR, "also from the same address"
        assert time.monotonic() - began < 1, "while nothing is checked"
        other = asyncio.create_task(made.role_of("bob", "y", "9.9.9.9"))
        await asyncio.sleep(0)
        assert not other.done(), "it has a place in the queue"
        gate.set()
        assert await other == CallerRole.OPERATOR
        return await asyncio.gather(*flood, return_exceptions=True)

    reported = asyncio.run(ask())
    assert reported.count(None) == passwords.MAX_CHECKS_OF_CALLER
    assert sum(isinstance(one, Overloaded) for one in reported) == 500 - passwords.MAX_CHECKS_OF_CALLER
    assert not made._running and not made._checks


def test_the_queue_of_checks_is_bounded_for_all_callers(gate):
    made = checker(f"ann:{hashed('x')}")

    async def ask():
        flood = [asyncio.create_task(made.role_of("ann", f"slow{n}", f"10.0.0.{n}")) for n in range(100)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*flood, return_exceptions=True)

    assert sum(isinstance(one, Overloaded) for one in asyncio.run(ask())) == 100 - passwords.MAX_CHECKS


def test_a_server_that_checks_enough_says_503_and_goes_on(gate, tmp_path, monkeypatch):
    monkeypatch.setattr(passwords, "MAX_CHECKS_OF_CALLER", 1)  # the server makes the object
    graph = Graph({"a": Namespace(f"sqlite:///{tmp_path}/q.db")})
    app = create_app(Settings(graph=graph, credentials=Credentials.from_texts(["token"], [f"ann:{hashed('x')}"])))

    async def ask():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:3444") as client:

            async def status(headers):
                return (await client.get("/q", headers=headers)).status_code

            assert await status(basic("ann:x")) == 200
            held = asyncio.create_task(status(basic("ann:slow")))
            await asyncio.sleep(0.05)
            refused = await client.get("/q", headers=basic("ann:wrong"))
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert "try again" in refused.json()["detail"]
            assert await status(basic("ann:x")) == 200, "who is remembered"
            assert await status({"authorization": "Bearer token"}) == 200
            assert not held.done()
            gate.set()
            assert await held == 401 == await status(basic("ann:wrong"))

    with calling(app):
        asyncio.run(ask())


def test_too_long_a_password_is_refused_before_anything_is_checked(checks):
    made = checker(f"ann:{hashed('x')}")
    for name in ("ann", "nobody"):
        with pytest.raises(PasswordTooLong):
            roles(made, f"{name}:{'x' * 73}")
    assert checks == []
