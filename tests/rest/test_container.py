"""Dockerfile and Compose files: what can be checked without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
import yaml
from docker.utils import exclude_paths
from dockerfile_parse import DockerfileParser

from spark_queue.cli.serve import build_graph
from spark_queue.rest import Credentials, Settings
from tests.command_line import Run
from tests.serving import serving

ROOT = Path(__file__).parents[2]
COMPOSE = sorted(ROOT.glob("compose*.yaml"))


def steps(*instructions: str) -> list[str]:
    """The values of these instructions of the Dockerfile, in order."""
    found = DockerfileParser(str(ROOT / "Dockerfile")).structure
    return [one["value"] for one in found if one["instruction"] in instructions]


def command(instruction: str) -> list[str]:
    """A command that is written as a JSON array."""
    [value] = steps(instruction)
    return json.loads(value[value.index("[") :])


# --- Dockerfile -----------------------------------------------------------------------------------


def test_the_builder_gets_each_source_of_a_copy_and_nothing_else():
    sent = exclude_paths(str(ROOT), (ROOT / ".dockerignore").read_text().splitlines())
    sources = set()
    for value in steps("COPY"):
        *words, _ = [word for word in shlex.split(value) if not word.startswith("--")]
        if "--from=" not in value:
            sources |= set(words)
    assert len(sources) >= 5
    for source in sources:
        assert (ROOT / source).exists(), source
    assert {path.partition("/")[0] for path in sent} - {"Dockerfile", ".dockerignore"} == sources
    assert any(path.endswith(".lua") for path in sent) and not any("__pycache__" in path for path in sent)


def test_all_that_the_build_reads_is_copied():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hatch = project["tool"]["hatch"]
    read = {one["path"] for one in hatch["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]}
    read |= {*project["project"]["license-files"], *hatch["build"]["targets"]["wheel"]["packages"], "pyproject.toml"}
    assert read <= {word for value in steps("COPY") if "--from=" not in value for word in shlex.split(value)}


def test_it_installs_extras_that_exist():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [extras] = [found for value in steps("RUN") for found in re.findall(r"'\.\[(.*)\]'", value)]
    assert {"cli", "rest", "mongodb", "redis"} <= set(extras.split(",")) <= set(known)


def test_it_runs_as_a_user_without_rights():
    [user] = steps("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user), "numbers, so that Kubernetes can see that it is not root"


def test_the_entry_point_listens_where_the_image_says_and_takes_more_arguments(monkeypatch):
    program, *arguments = command("ENTRYPOINT")
    port = arguments[arguments.index("--port") + 1]
    assert program == "spark-queue" and steps("EXPOSE") == [port]
    monkeypatch.delenv("SPARK_QUEUE_REST_URLS", raising=False)
    refused = Run(*arguments)
    assert refused.code == 2 and "there is nothing to serve" in refused.err, refused.err
    refused = Run(*arguments, "--url", "a=sqlite:///q.db")
    assert refused.code == 2 and "--token-file" in refused.err, "not for everybody on the network"


def test_the_health_check_knows_a_server_that_lives(server):
    program, *arguments = command("HEALTHCHECK")
    assert program == "python" and "127.0.0.1:3444/health" in arguments[-1]

    def check(address):
        code = arguments[-1].replace("http://127.0.0.1:3444", address)
        return subprocess.run([sys.executable, *arguments[:-1], code], capture_output=True, timeout=60, check=False)

    assert check(server.url).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    assert check(f"http://127.0.0.1:{free}").returncode != 0
    assert check(f"{server.url}/nowhere").returncode != 0


def test_stores_come_from_the_environment(tmp_path):
    urls = f"one=sqlite:///{tmp_path}/1.db two=sqlite:///{tmp_path}/2.db"
    env = {"SPARK_QUEUE_REST_URLS": urls}
    with serving(tmp_path, env=env) as started:
        assert set(httpx.get(f"{started.url}/q").json()) == {"one", "two"}
    with serving(tmp_path, "--url", f"three=sqlite:///{tmp_path}/3.db", env=env) as started:
        assert set(httpx.get(f"{started.url}/q").json()) == {"three"}


# --- Compose files --------------------------------------------------------------------------------


@pytest.fixture(params=COMPOSE, ids=lambda path: path.name)
def compose(request):
    return request.param


def test_there_is_one_for_each_kind_of_server():
    assert [path.name for path in COMPOSE] == ["compose.mongodb.yaml", "compose.redis.yaml"]


def test_it_is_as_the_schema_of_compose_files_says(compose, tmp_path):
    def check(path):
        call = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
        return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)

    done = check(compose)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(compose.read_text().replace("healthcheck:", "health_check:", 1))
    assert check(wrong).returncode == 1


def test_nothing_is_published_to_other_machines_and_the_database_to_none(compose):
    services = yaml.safe_load(compose.read_text())["services"]
    assert services["serve"]["ports"] == ["127.0.0.1:3444:3444"]
    for name, service in services.items():
        if name != "serve":
            assert "ports" not in service and service["networks"] == ["database"]
    assert yaml.safe_load(compose.read_text())["networks"]["database"] == {"internal": True}


def test_secrets_come_from_the_environment_and_must_be_set(compose):
    text = compose.read_text()
    plain = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    variables = re.findall(r"(?<!\$)\$\{?(\w+)([^}\n]*)", plain)
    assert {"SPARK_QUEUE_REST_TOKEN"} <= {name for name, _ in variables}
    for name, rest in variables:
        assert rest.startswith(":?"), f"{name} may be left out, and would be empty"
        assert f"{name}=$(openssl rand -hex 32)" in text, f"the head of the file does not say how to make {name}"


def test_the_server_starts_once_its_database_is_healthy_and_serves_it(compose):
    services = yaml.safe_load(compose.read_text())["services"]
    [(database, how)] = services["serve"]["depends_on"].items()
    assert how == {"condition": "service_healthy"} and services[database]["healthcheck"]["test"]
    urls = re.sub(r"\$\{\w+:\?[^}]*\}", "secret", services["serve"]["environment"]["SPARK_QUEUE_REST_URLS"])
    settings = Settings(graph=build_graph(None, urls.split()), credentials=Credentials.from_texts(["x"]))
    assert f"{database}:" in settings.options["queues"].database.url
