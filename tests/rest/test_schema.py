"""The OpenAPI document is true: schemathesis makes the calls that it allows, and others."""

from __future__ import annotations

import warnings
from contextlib import suppress

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tests.serving import serving

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.full]

#: Numbers of calls of each resource that the document allows, and of others. An allowed call may be
#: refused too: its receipt may hold nothing, its moment may be invalid.
EXAMPLES = {GenerationMode.POSITIVE: 15, GenerationMode.NEGATIVE: 4}

#: These ignore what they do not know, as keuss-server does.
LENIENT = ("/q", "/x", "/metrics")


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """A server of its own: what is pushed at random must meet no other test."""
    folder = tmp_path_factory.mktemp("schema")
    (folder / "g.yaml").write_text(
        f"namespaces: {{a: 'sqlite:///{folder}/q.db'}}\nexchanges: {{x: {{src: a/in, dst: [out]}}}}\n"
    )
    args = ("--graph", folder / "g.yaml", "--events", "a/events", "--max-wait", "10ms", "--max-body", 100_000)
    with serving(folder, *args) as started:
        yield started


@pytest.mark.parametrize("mode", EXAMPLES, ids=lambda mode: mode.value)
def test_every_answer_is_as_the_page_says(own_server, mode):
    schema = schemathesis.openapi.from_url(f"{own_server.url}/openapi.json")
    quiet = settings(
        max_examples=EXAMPLES[mode], deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    called = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and operation.path.startswith(LENIENT):
            continue

        @quiet
        @given(operation.as_strategy(generation_mode=mode))
        def call(case):
            nonlocal called
            answer = case.call(timeout=120)
            assert answer.status_code < 500 or answer.status_code == 504, answer.text
            case.validate_response(answer, excluded_checks=[positive_data_acceptance])
            called += 1

        with suppress(Unsatisfiable):  # nothing that is sent can be wrong
            call()
    assert called > 40
    assert "Traceback" not in own_server.said
