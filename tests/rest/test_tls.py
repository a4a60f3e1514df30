"""With TLS, a connection counts from the moment it is accepted, and a handshake has its time."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import tomllib
from contextlib import ExitStack, suppress
from functools import partial

import httpx
import pytest

from spark_queue.stores.conformance.waiting import wait_until
from tests.crowds import open_files
from tests.serving import ROOT, Serving, serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, to make a certificate")

#: Connections that the server may have; a handshake takes a second at most.
MOST = 8


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    run = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(
        [*run.split(), "-addext", "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, capture_output=True
    )
    return folder


@pytest.fixture(scope="module")
def secure(tmp_path_factory, certificate):
    folder = tmp_path_factory.mktemp("secure")
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'serve' in sys.argv:\n"
        "    from spark_queue.rest import server\n"
        "    from spark_queue.rest.guard import acceptor\n"
        "    acceptor.HANDSHAKE_TIMEOUT = 1.0\n"
        f"    server.raise_limit_of_files = lambda stores: {MOST}\n"
    )
    args = ("--url", f"a=sqlite:///{folder}/q.db", "--tls-cert", certificate / "cert.pem")
    env = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    with serving(folder, *args, "--tls-key", certificate / "key.pem", env=env) as started:
        yield started


@pytest.fixture
def trusted(certificate):
    return ssl.create_default_context(cafile=str(certificate / "cert.pem"))


def connect(server):
    host, port = server.url.removeprefix("https://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_messages_go_both_ways(secure, trusted):
    with httpx.Client(base_url=secure.url, verify=trusted) as http:
        large = "x" * 1_000_000
        assert http.put("/q/a/both", json=large).status_code == 200
        assert http.get("/q/a/both").json() == large


def test_silent_connections_take_neither_files_nor_places(secure, trusted):
    """Ten times as many as there may be: the oldest ends, and another caller is answered."""
    before = open_files(secure.process.pid)
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(secure)) for _ in range(10 * MOST)]
        wait_until(lambda: silent[9 * MOST - 1].recv(1) == b"")
        assert open_files(secure.process.pid) <= before + MOST + 1
        assert httpx.get(f"{secure.url}/health", verify=trusted).status_code == 200
        for one in silent:  # each ends: as the oldest, or after the time of a handshake
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
    assert secure.said.count("more than 8 connections") == 1 and "Traceback" not in secure.said


def test_what_is_no_tls_ends(secure):
    with connect(secure) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        while part := opened.recv(1024):
            assert b"200" not in part
    assert "Traceback" not in secure.said


def test_a_file_that_is_no_certificate_is_refused(tmp_path):
    (tmp_path / "no.pem").write_text("no")
    start = partial(Serving, tmp_path, "--url", "a=sqlite:///q.db", "--tls-cert", tmp_path / "no.pem")
    with pytest.raises(AssertionError, match="it must be a certificate in PEM"):
        start()


def test_the_library_whose_undocumented_parts_the_guard_extends_has_an_upper_bound():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["rest"]
    for name in ("uvicorn", "httptools"):
        assert "<" in next(one for one in wanted if one.startswith(name)), name
