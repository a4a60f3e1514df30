"""What a URL says to us is taken out of it, and the rest left as it was written."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue.errors import OptionError
from spark_queue.options.masking import PARAMETERS
from spark_queue.options.roles import parse_options
from spark_queue.options.url import StoreUrl
from spark_queue.stores import store_class

HEADS = ["mongodb://u:p%40ss@host:1,other:2/db", "redis://host/0", "sqlite:///a/b c.db"]
THEIRS = st.lists(st.sampled_from(["w=majority", "replicaSet=rs0", "a=%26b", "x", "Layout=upper"]), max_size=3)
OURS = st.dictionaries(st.sampled_from(PARAMETERS), st.text("abc-/ü&=%", min_size=1), max_size=4)


@given(head=st.sampled_from(HEADS), theirs=THEIRS, ours=OURS, data=st.data())
def test_what_is_ours_is_taken_out_wherever_it_stands(head, theirs, ours, data):
    both = data.draw(st.permutations([*theirs, *(urlencode({name: value}) for name, value in ours.items())]))
    found = StoreUrl.parse(f"{head}?{'&'.join(both)}" if both else head)
    assert found.parameters == ours
    assert sorted(found.url.partition("?")[2].split("&")) == (sorted(theirs) or [""])
    assert found.url.partition("?")[0] == head


@pytest.mark.parametrize("text", ["layout=", "layout=a&layout=b", "ns=&ns=x"])
def test_invalid_parameters_of_ours_are_refused(text):
    with pytest.raises(OptionError, match=text.partition("=")[0]):
        StoreUrl.parse(f"redis://host/0?{text}")


def test_a_url_gets_a_layout():
    assert StoreUrl.parse("mongodb://host/db?w=1&pipeline=p").with_layout("pl-mongo") == (
        "mongodb://host/db?w=1&layout=pl-mongo&pipeline=p"
    )
    assert StoreUrl.parse("redis://host/0?layout=rfq").with_layout("rfq") == "redis://host/0?layout=rfq"
    with pytest.raises(OptionError, match="the URL has layout=rfq"):
        StoreUrl.parse("redis://host/0?layout=rfq").with_layout("redis-list")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mongodb://u:sesame@host/db?layout=pl-mngo", "pl-mongo"),
        ("redis://host/0?layout=mongo", "redis-oq, redis-list, rfq"),
        ("sqlite:///queues.db?layout=mongo", "none to choose from"),
        ("mongodb://u:sesame@host/db?layout=buckt", "did you mean 'bucket'"),
    ],
)
def test_a_layout_that_a_database_lacks_is_refused(url, said):
    with pytest.raises(OptionError, match=said) as error:
        store_class(url)
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mongodb://host/db?layout=mongo&pipeline=p", "no parameter 'pipeline'"),
        ("mongodb://host/db?layout=pl-mongo&ttl=5", "no parameter 'ttl'"),
        ("redis://host/0?pipeline=p", "no parameter 'pipeline'"),
        ("mongodb://host/db?layout=ps-mongo&ttl=1h", "must be a number of seconds"),
        ("mongodb://host/db?layout=ps-mongo&ttl=0", "must be a number of seconds"),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(url, said):
    with pytest.raises(OptionError, match=said):
        store_class(url)(url)


def test_the_option_layout_goes_into_the_url():
    options = parse_options({"url": "mongodb://host/db", "queue": "q", "layout": "PL-mongo"}, "stream")
    assert (options.database.url, options.database.layout) == ("mongodb://host/db?layout=pl-mongo", None)
    both = parse_options({"url": "mongodb://host/db?layout=pl-mongo", "queue": "q", "layout": "bucket"}, "push")
    assert (both.database.url, both.database.layout) == ("mongodb://host/db?layout=pl-mongo", "bucket")


@pytest.mark.parametrize(
    ("role", "given", "said"),
    [
        ("stream", {"url": "redis://h/0", "layout": "bucket"}, "is not for a streaming read"),
        ("push", {"urls": '{"a": "redis://h/0"}', "layout": "rfq"}, "each of 'urls'"),
        ("push", {"url": "redis://h/0?layout=rfq", "layout": "redis-oq"}, "the URL has layout=rfq"),
    ],
)
def test_an_invalid_option_layout_is_refused(role, given, said):
    with pytest.raises(OptionError, match=said):
        parse_options({"queue": "q", **given}, role)
