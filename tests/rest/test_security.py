"""Who may call, and from where; nothing that is secret is revealed."""

from __future__ import annotations

import httpx
import pytest
from fastapi.routing import APIRoute

from spark_queue.errors import OptionError
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest.app import ROUTERS, create_app
from spark_queue.rest.guard.address import check_address
from spark_queue.rest.guard.credentials import CallerRole, Credentials, role_of
from spark_queue.rest.settings import Settings
from tests.rest.in_process import calling
from tests.serving import basic, serving

TOKEN, USER = "correct-horse-battery", "clerk:pässword:1"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "users").write_text(f"{USER}\nother:pw\n")
    env = {"SPARK_QUEUE_REST_TOKEN": TOKEN}
    with serving(folder, "--url", f"a=sqlite:///{folder}/q.db", "--users-file", folder / "users", env=env) as started:
        yield started


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


def test_a_body_of_an_unknown_caller_is_not_read(guarded):
    assert httpx.put(f"{guarded.url}/q/a/x", content=b"x" * (4 << 20)).status_code == 401
    reported = httpx.get(f"{guarded.url}/q/a/x/status", headers=basic(USER)).json()
    assert reported["totalSize"] == 0


def test_nothing_secret_is_revealed(guarded):
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
        {"origin": "null"}, {"origin": "http://["}, {"host": "["}, {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
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


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example.org"}, {"origin": "http://["},
                                     {"sec-fetch-site": "cross-site"}])  # fmt: skip
def test_a_page_of_another_site_may_not_use_a_password_that_the_browser_keeps(guarded, headers):
    refused = httpx.get(f"{guarded.url}/q", headers=basic(USER) | headers)
    assert refused.status_code == 403 and refused.headers["content-type"] == "application/problem+json"
    token = {"authorization": f"Bearer {TOKEN}"}  # no browser sends it by itself
    assert httpx.get(f"{guarded.url}/q", headers=token | headers).status_code == 200
    own = {"host": "queues.example.org", "origin": "https://queues.example.org"}  # behind a proxy with TLS
    assert httpx.get(f"{guarded.url}/q", headers=basic(USER) | own).status_code == 200


# --- roles ----------------------------------------------------------------------------------------

#: What viewers may call. It is written out here, so that a new route is for operators until it is listed.
VIEWABLE = {
    ("GET", "/v1/queues"), ("GET", "/v1/queues/{ns}/{queue}"), ("GET", "/v1/queues/{ns}/{queue}/messages"),
    ("GET", "/q"), ("GET", "/q/{ns}"), ("GET", "/q/{ns}/{queue}/status"), ("GET", "/q/{ns}/{queue}/paused"),
    ("GET", "/q/{ns}/{queue}/consumers"), ("GET", "/x"), ("GET", "/x/{name}"), ("GET", "/metrics"),
    ("GET", "/health"), ("HEAD", "/health"), ("GET", "/ready"), ("HEAD", "/ready"),
}  # fmt: skip


def test_a_viewer_may_look_and_do_nothing_else(tmp_path):
    graph = Graph({"a": Namespace(f"sqlite:///{tmp_path}/q.db")})
    credentials = Credentials.from_texts(["viewer look", "operator do", "plain"], ["viewer eve:pw", "bob:p w"])
    called = 0
    with calling(create_app(Settings(graph=graph, credentials=credentials, events="a/events"))) as client:
        for route in [one for router in ROUTERS for one in router.routes if isinstance(one, APIRoute)]:
            path = route.path.replace("{ns}", "a").replace("{queue}", "q")
            for method in route.methods or ():
                for who in ({"authorization": "Bearer look"}, basic("eve:pw")):
                    answer = client.request(method, f"{path}?to=0" if path == "/q/a/q" else path, headers=who)
                    allowed = (method, route.path) in VIEWABLE
                    assert (answer.status_code != 403) == allowed, (method, path, answer.text)
                    assert allowed or "needs the role operator" in answer.json()["detail"]
                    called += 1
        for who in ({"authorization": "Bearer do"}, {"authorization": "Bearer plain"}, basic("bob:p w")):
            assert client.request("PUT", "/q/a/q", headers=who, content="1").status_code == 200
        assert client.get("/docs", headers={"authorization": "Bearer look"}).status_code == 200
        assert client.get("/q", headers={"authorization": "Bearer viewer look"}).status_code == 401
    assert called > 60


def test_roles_of_credentials():
    made = Credentials.from_texts(["viewer  x", "viewer-token", "y"])
    found = [role_of(one, made.tokens) for one in ("x", "viewer-token", "y", "z", "viewer  x", "")]
    assert found == [CallerRole.VIEWER, CallerRole.OPERATOR, CallerRole.OPERATOR, None, None, None]
    for empty in ("viewer", "operator", " ", "viewer "):
        with pytest.raises(OptionError, match="is empty"):
            Credentials.from_texts([empty])
    for empty in ("viewer", "viewer :x", "viewer a:"):
        with pytest.raises(OptionError, match="user:password"):
            Credentials.from_texts(users=[empty])


def test_metrics_may_be_open(tmp_path):
    url = f"a=sqlite:///{tmp_path}/q.db"
    env = {"SPARK_QUEUE_REST_TOKEN": TOKEN}
    with serving(tmp_path, "--url", url, "--open-metrics", env=env) as started:
        assert "q_global_up" in httpx.get(f"{started.url}/metrics").text
        assert httpx.get(f"{started.url}/q").status_code == 401


def test_readable_secrets_give_a_warning(tmp_path):
    (tmp_path / "tokens").write_text("secret-token\n")
    (tmp_path / "tokens").chmod(0o644)
    url = "a=redis://me:secret@127.0.0.1:1/0"
    with serving(tmp_path, "--url", url, "--token-file", tmp_path / "tokens") as started:
        assert "other users of this machine can read it" in started.said and "SPARK_QUEUE_REST_URLS" in started.said
        assert "secret" not in started.said.replace("secret-token", "")
    (tmp_path / "tokens").chmod(0o600)
    env = {"SPARK_QUEUE_REST_URLS": url}
    with serving(tmp_path, "--token-file", tmp_path / "tokens", env=env) as started:
        assert "warning" not in started.said and "other users" not in started.said


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
