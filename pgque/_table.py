"""Rows as an aligned table for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]


def table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """Lay out rows under the names of `columns` (default: all); numbers stand right."""
    names = list(columns or rows[0])
    cells = [[text(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [all(_is_number(row[name]) for row in rows) for name in names]

    def line(values: Iterable[str]) -> str:
        parts = [
            value.rjust(width) if numeric else value.ljust(width)
            for value, width, numeric in zip(values, widths, right, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(names), line("-" * width for width in widths), *map(line, cells)])


def text(value: Any) -> str:
    """One value on one line: None as "-", times to the second, durations in plain units."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return value.astimezone().isoformat(" ", "seconds")
    if isinstance(value, timedelta):
        return _duration(value.total_seconds())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def as_json(value: Any, indent: int | None = 2) -> str:
    """JSON with times in ISO 8601 and durations in seconds."""
    return json.dumps(value, default=_plain, indent=indent, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    return str(value)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float | Decimal | timedelta)


def _duration(seconds: float) -> str:
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{sign}{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    return sign + " ".join([f"{number} {unit}" for number, unit in parts if number][:2])
