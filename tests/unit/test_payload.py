"""What goes in as a payload comes back as the same value, or is refused with the path to it."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgque import PgqueError, PgquePayloadError, RawJson
from pgque._payload import decode, encode

json_text = st.text(st.characters(exclude_characters="\0"))  # lone surrogates included
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | json_text,
    lambda inner: st.lists(inner) | st.dictionaries(json_text, inner),
)


@given(json_values)
def test_what_json_holds_comes_back(value: Any) -> None:
    """Value and type alike, whatever it is made of."""
    back = decode(encode(value))
    assert back == value
    assert repr(back) == repr(value)  # 1, 1.0 and True are equal to each other


@given(json_values)
def test_stored_text_fits_any_server_encoding(value: Any) -> None:
    """Only ASCII is sent, and never the escape that jsonb refuses."""
    assert encode(value).isascii()


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "a\\\\\\u0000", "\\"])
def test_backslash_before_u0000_is_no_nul(text: str) -> None:
    """A text that only looks like the escape of NUL is an ordinary text."""
    assert decode(encode({"text": text})) == {"text": text}


def itself() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"items": [0, 1, 2, {"price": float("inf")}]}, "$.items[3].price"),
        ({"a b": -float("inf")}, '$["a b"]'),
        ([b"bytes"], "$[0]"),
        ({"tags": {"a set"}}, "$.tags"),
        ((1, (2, decimal.Decimal(1))), "$[1][1]"),
        ({"at": dt.datetime.now(dt.timezone.utc)}, "$.at"),
        ({"id": uuid.uuid4()}, "$.id"),
        ({"a": "nul \0 inside"}, "$.a"),
        ({"a": [{"nul \0 key": 1}]}, "$.a[0]"),
        ({"a": {1: "int key"}}, "$.a"),
        ({"a": {None: 1}}, "$.a"),
        ({"a": {True: 1}}, "$.a"),
        ({(1, 2): 1}, "$"),
        (itself(), "$[0].again"),
        ({"a": object()}, "$.a"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: Any, path: str) -> None:
    """Nothing is changed on the quiet, and the bad value is easy to find."""
    with pytest.raises(PgquePayloadError) as caught:
        encode(value)
    assert str(caught.value).split(": ")[0] == path
    assert isinstance(caught.value, PgqueError)
    assert isinstance(caught.value, ValueError)


def test_tuples_come_back_as_lists() -> None:
    """JSON has one kind of sequence."""
    assert decode(encode((1, (2,)))) == [1, [2]]


def test_depth_has_an_end_but_no_crash() -> None:
    """Nesting beyond what Python's JSON can take is a clear error, on both sides."""
    deep: Any = None
    for _ in range(500):
        deep = [deep]
    assert decode(encode(deep)) == deep
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(PgquePayloadError, match="nested too deeply"):
        encode(deep)
    text = "[" * 200_000 + "]" * 200_000
    assert decode(text) == text
    with pytest.raises(PgquePayloadError, match="nested too deeply"):
        encode(RawJson(text))


@pytest.mark.parametrize(
    "text", ['{"b": 1,  "a": 1.50}', "1e400", "null", '"ä"', "9" * 5000, '{"a":1,"a":2}']
)
def test_raw_json_is_kept_byte_for_byte(text: str) -> None:
    """Spaces, order, number formats, doubled keys, and numbers that no Python number holds."""
    assert encode(RawJson(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "hello", "NaN", "[Infinity]", "{'a': 1}", '"\ud800"', '"\\u0000"', '{"\\u0000": 1}'],
)
def test_raw_json_that_is_not_json_is_refused(text: str) -> None:
    """Nothing is sent that a reader could not decode, or PostgreSQL not store."""
    with pytest.raises(PgquePayloadError):
        encode(RawJson(text))


def test_raw_json_must_be_text() -> None:
    """Bytes would have to be guessed at."""
    with pytest.raises(PgquePayloadError):
        encode(RawJson(b"{}"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["hello", "{", "", "'a'", "-" * 10, "[1, 2"])
def test_text_that_is_not_json_comes_as_it_is(text: str) -> None:
    """Other programs may have sent it."""
    assert decode(text) == text


def test_null_and_huge_numbers_decode() -> None:
    """SQL NULL is None; a number beyond this Python's limit leaves the text."""
    assert decode(None) is None
    assert decode("null") is None
    digits = "9" * (sys.get_int_max_str_digits() + 1)
    assert decode(digits) == digits


def test_dumps_replaces_json() -> None:
    """It may return bytes, as orjson does; its own errors come through as they are."""
    assert encode({1: 2}, dumps=lambda _: b'{"one": 2}') == '{"one": 2}'
    assert encode(decimal.Decimal("1.5"), dumps=lambda v: json.dumps(v, default=str)) == '"1.5"'
    with pytest.raises(ZeroDivisionError):
        encode(1, dumps=lambda v: str(v / 0))


@pytest.mark.parametrize("result", ["nul \0", '"\\u0000"', "\ud800", 7])
def test_what_dumps_returns_must_be_storable(result: Any) -> None:
    """Text without NUL, or it is refused before anything is sent."""
    with pytest.raises(PgquePayloadError):
        encode(1, dumps=lambda _: result)
