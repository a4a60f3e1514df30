"""Who may call, and from where; nothing that is secret is told."""

from __future__ import annotations

import base64

import httpx
import pytest

from spark_queue.errors import OptionError
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest.settings import Credentials, Settings, check_address
from tests.serving import serving

TOKEN, USER = "correct-horse-battery", "clerk:pässword:1"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "users").write_text(f"{USER}\nother:pw\n")
    env = {"SPARK_QUEUE_REST_TOKEN": TOKEN}
    with serving(folder, "--url", f"a=sqlite:///{folder}/q.db", "--users-file", folder / "users", env=env) as started:
        yield started


def basic(text):
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@pytest.mark.parametrize(
    "who",
    [{"authorization": f"Bearer {TOKEN}"}, {"authorization": f"bearer  {TOKEN}"}, basic(USER), basic("other:pw")],
)
def test_who_is_known_may_call(guarded, who):
    assert httpx.get(f"{guarded.url}/q", headers=who).status_code == 200
    assert httpx.get(f"{guarded.url}/q", headers=who | {"host": "queues.example.org"}).status_code == 200


@pytest.mark.parametrize(
    "who",
    [
        {}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": f"Basic {TOKEN}"}, {"authorization": TOKEN},
        basic("clerk:"), basic("clerk:wrong"), basic(f"Bearer:{TOKEN}"), basic("pw"), {"authorization": "Basic !!!"},
        {"authorization": "Basic /////w=="}, {"authorization": f"Bearer {USER}".encode()},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "path", ["/q", "/q/a/x", "/metrics", "/docs", "/openapi.json", "/nowhere", "/v1/resources/hub-queue"]
)
def test_who_is_not_known_may_not(guarded, who, path):
    refused = httpx.get(guarded.url + path, headers=who)
    assert refused.status_code == 401 and refused.headers["content-type"] == "application/problem+json"
    assert {one.split()[0] for one in refused.headers.get_list("www-authenticate")} == {"Basic", "Bearer"}


def test_a_body_of_somebody_unknown_is_not_read(guarded):
    assert httpx.put(f"{guarded.url}/q/a/x", content=b"x" * (4 << 20)).status_code == 401
    told = httpx.get(f"{guarded.url}/q/a/x/status", headers=basic(USER)).json()
    assert told["totalSize"] == 0


def test_nothing_secret_is_told(guarded):
    everything = httpx.get(f"{guarded.url}/openapi.json", headers=basic(USER)).text + guarded.said
    everything += httpx.get(f"{guarded.url}/metrics", headers=basic(USER)).text
    made = Credentials.from_texts([TOKEN], [USER])
    everything += repr(made) + repr(
        Settings(graph=Graph({"a": Namespace("redis://me:secret@nowhere/0")}), credentials=made)
    )
    for secret in (TOKEN, "pässword", "secret"):
        assert secret not in everything
    assert '"securitySchemes":{"basic"' in everything.replace(" ", "")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example.org"}, {"host": "127.0.0.1.evil.example.org"}, {"origin": "http://evil.example.org"},
        {"origin": "null"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    ],
)  # fmt: skip
def test_without_credentials_no_page_of_another_site_may_call(server, headers):
    refused = httpx.post(f"{server.url}/q/sqlite/x", content="1", headers=headers)
    assert refused.status_code == 403 and refused.headers["content-type"] == "application/problem+json"
    assert httpx.get(f"{server.url}/q/sqlite/x/status").json()["totalSize"] == 0


def test_a_page_of_its_own_may_call(server):
    port = server.url.rpartition(":")[2]
    for host in ("localhost", "127.0.0.1"):
        own = {"host": f"{host}:{port}", "origin": f"http://{host}:{port}", "sec-fetch-site": "same-origin"}
        assert httpx.get(f"{server.url}/q", headers=own).status_code == 200


def test_only_this_machine_is_served_without_credentials():
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"):
        check_address(host, Credentials())
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", ""):
        with pytest.raises(OptionError, match="--token-file"):
            check_address(host, Credentials())
        check_address(host, Credentials.from_texts(["x"]))


@pytest.mark.parametrize("wrong", [{"tokens": [""]}, {"users": ["clerk"]}, {"users": [":pw"]}, {"users": ["clerk:"]}])
def test_empty_credentials_are_none(wrong):
    with pytest.raises(OptionError):
        Credentials.from_texts(**wrong)


def test_an_empty_variable_or_file_is_a_mistake(tmp_path):
    with pytest.raises(OptionError):
        Credentials.read({"SPARK_QUEUE_REST_TOKEN": ""})
    (tmp_path / "none").write_text("\n")
    with pytest.raises(OptionError, match="it must have at least one line"):
        Credentials.read({}, tmp_path / "none")
