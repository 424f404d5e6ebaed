"""Payloads to JSON text and back. What comes back is what was sent, or nothing is sent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pgque.errors import PgquePayloadError

Dumps = Callable[[Any], "str | bytes"]

# U+0000 as JSON writes it, not a backslash followed by "u0000": PostgreSQL's jsonb refuses it.
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True, slots=True)
class RawJson:
    """Text that is JSON already: it is checked when sent, and stored byte for byte."""

    text: str


def encode(payload: Any, dumps: Dumps | None = None) -> str:
    """Return the text to store; raise `PgquePayloadError` for what JSON would lose or change."""
    if isinstance(payload, RawJson):
        return _checked_raw(payload.text)
    if dumps is not None:
        return _from_dumps(payload, dumps)
    try:
        text = _encode(payload)
        odd_key = _has_odd_key(payload)
    except RecursionError:
        raise PgquePayloadError("the payload is nested too deeply") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise _complaint(payload, str(error)) from None
    if odd_key or _has_nul(text):
        raise _complaint(payload, "JSON would change it")
    return text


def decode(text: str | None) -> Any:
    """Return the value of a stored text; the text itself where it is not JSON. Never raises."""
    if text is None:
        return None
    try:
        return _decode(text)
    except (ValueError, RecursionError):  # not JSON, or beyond what this Python can hold
        return text


_encode = json.JSONEncoder(allow_nan=False).encode
_decode = json.JSONDecoder().decode


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Raw text is only checked, so numbers need not fit into Python's.
_parse_raw = json.JSONDecoder(
    parse_int=len, parse_float=len, parse_constant=_refuse_constant
).decode


def _checked_raw(text: str) -> str:
    try:
        value = _parse_raw(text)
    except RecursionError:
        raise PgquePayloadError("the RawJson text is nested too deeply") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise PgquePayloadError(f"the RawJson text is not JSON: {error}") from None
    if _has_nul(text):
        raise _complaint(value, "it holds a NUL character")
    _check_encodable(text)
    return text


def _from_dumps(payload: Any, dumps: Dumps) -> str:
    text = dumps(payload)
    if isinstance(text, bytes):
        text = text.decode()
    if not isinstance(text, str):
        raise PgquePayloadError(f"dumps returned {type(text).__name__}, not str or bytes")
    if "\0" in text or _has_nul(text):
        raise PgquePayloadError("what dumps returned holds a NUL character")
    _check_encodable(text)
    return text


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PgquePayloadError(f"the text can't be encoded: {error.reason}") from None


def _has_nul(text: str) -> bool:
    return "\\u0000" in text and _NUL_ESCAPE.search(text) is not None


def _has_odd_key(payload: Any) -> bool:
    """Look for keys that json.dumps would turn into strings, as fast as Python can."""
    containers: list[Any] = [payload] if isinstance(payload, _CONTAINERS) else []
    for container in containers:  # grows while it is walked
        if isinstance(container, dict):
            try:
                "".join(container)
            except TypeError:
                return True
            container = container.values()
        containers += [value for value in container if isinstance(value, _CONTAINERS)]
    return False


_CONTAINERS = (dict, list, tuple)


def _complaint(payload: Any, otherwise: str) -> PgquePayloadError:
    try:
        path, why = next(_problems(payload, "$", ()), ("$", otherwise))
    except RecursionError:
        path, why = "$", otherwise
    return PgquePayloadError(f"{path}: {why}")


def _problems(value: Any, path: str, parents: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong) for everything in `value` that JSON can't hold."""
    if isinstance(value, _CONTAINERS):
        if id(value) in parents:
            yield path, "it contains itself"
            return
        for step, child in _children(value):
            if isinstance(value, dict):
                yield from _key_problems(step, path)
            yield from _problems(child, path + _step(step), (*parents, id(value)))
    elif isinstance(value, str):
        if "\0" in value:
            yield path, "a NUL character can't be stored"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path, f"{value} is not JSON"
    elif value is not None and not isinstance(value, int):
        yield path, f"{type(value).__name__} is not JSON; convert it, or pass dumps="


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else enumerate(value)


def _key_problems(key: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(key, str):
        yield path, f"the key {key!r} is not a string and would come back as one"
    elif "\0" in key:
        yield path, f"the key {key!r} holds a NUL character, which can't be stored"


def _step(step: Any) -> str:
    if isinstance(step, str):
        return f".{step}" if step.isidentifier() else f"[{json.dumps(step)}]"
    return f"[{step!r}]"
