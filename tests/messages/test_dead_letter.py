"""A dead letter in all its forms: what each of them keeps, and that the last one is small."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from spark_queue.errors import MessageError
from spark_queue.messages.dead_letter import KEPT_BYTES, NewDeadLetter, batch_of, cut_text, put_letters
from spark_queue.messages.rules import validate_rows

WHY = {"x-error": "because", "x-dl-from-queue": "q"}


def letter(payload=b'{"a":1}', kind="json", headers=None, id="one", **more):
    return NewDeadLetter(id, payload, kind, headers or {}, WHY, "spare", **more)


def forms(one):
    return [(row["payload"], row["payload_kind"], row["id"], dict(row["headers"])) for row in one.variants()]


def test_it_is_first_what_the_message_was():
    payload, kind, id, headers = forms(letter(headers={"h": "1"}))[0]
    assert (payload, kind, id, headers) == (b'{"a":1}', "json", "one", {"h": "1", **WHY})


def test_each_form_may_have_another_id():
    for first, second in zip(*[iter(forms(letter()))] * 2, strict=True):
        assert first[:2] == second[:2]
        assert (first[2], second[2], second[3]["x-dl-id"]) == ("one", "spare", "one")
    assert {id for _, _, id, _ in forms(letter(needs_spare=True))} == {"spare"}


def test_json_becomes_a_text_then_an_object_then_its_beginning():
    text = '{"a":"' + "é" * KEPT_BYTES + '"}'
    found = forms(letter(text.encode()))[::2]
    assert [kind for _, kind, _, _ in found] == ["json", "text", "json", "text", "json"]
    assert json.loads(found[2][0]) == {"document": text}
    for payload, _, _, headers in found[3:]:
        assert headers["x-dl-size"] == str(len(text.encode()))
        assert headers["x-dl-sha256"] == sha256(text.encode()).hexdigest()
        assert len(payload) <= KEPT_BYTES + 30
    assert text.startswith(json.loads(found[4][0])["document"])


@pytest.mark.parametrize("payload", [b"\xff" * 2_000_000, b"\xff", b"", b"text"])
def test_bytes_stay_bytes_or_are_base64(payload):
    found = forms(letter(payload, "binary"))
    assert found[0][:2] == (payload, "binary")
    assert json.loads(found[2][0])["document"] is not None
    assert max(len(payload) for payload, _, _, _ in found[-4:]) < 1.4 * KEPT_BYTES


@pytest.mark.parametrize(
    ("headers", "id"),
    [
        ({f"h{n}": "" for n in range(20_000)}, "one"), ({"h": "x" * 10_000}, "one"), ({"a\0b": "1"}, "one"),
        ({"h": "1"}, "x" * 2_000),
    ],
    ids=["number", "size", "name", "id"],
)  # fmt: skip
def test_what_does_not_fit_into_headers_is_in_the_payload(headers, id):
    found = forms(letter(headers=headers, id=id))
    payload, kind, _, kept = found[0]
    assert kind == "text" and json.loads(payload) == {"id": id, "payload": '{"a":1}', "headers": headers}
    assert kept["x-dl-headers"] == str(len(headers))
    assert kept["x-dl-headers-size"] == str(sum(len(name) + len(value) for name, value in headers.items()))
    last = found[-1]
    assert last[3]["x-dl-sha256"] == sha256(payload).hexdigest() and last[3]["x-dl-size"] == str(len(payload))
    assert sum(len(name) + len(value) for name, value in last[3].items()) < 40_000
    rows = [row for row in letter(headers=headers, id=id).variants() if row["id"] == "spare"]
    assert validate_rows(batch_of(rows), 1 << 30) == {}


def test_letters_are_put_each_in_the_first_form_that_is_taken():
    calls = []

    def put(batch):
        calls.append(batch.num_rows)
        kinds = batch.column("payload_kind").to_pylist()
        if wrong := {row: "no text" for row, kind in enumerate(kinds) if kind != "binary" and len(kinds) > 1}:
            raise MessageError("no", rows=wrong)

    letters = [letter(), letter(b"\xff", "binary", id="two")]
    with pytest.raises(MessageError):
        put_letters(put, letters)
    assert calls == [2] * len(forms(letter()))
    put_letters(put, letters[:1])


def test_an_error_that_names_no_row_is_raised():
    def put(batch):
        raise MessageError("the stage is gone")

    with pytest.raises(MessageError, match="the stage is gone"):
        put_letters(put, [letter()])


@pytest.mark.parametrize("text", ["", "é" * 10, "x" * 20, "é" * 11, "😀" * 6, "\ud800" * 30])
def test_a_text_is_cut_between_characters(text):
    cut = cut_text(text, 20)
    assert len(cut.encode()) <= 20
    assert cut == text or cut.endswith("…") or "\ud800" in text
