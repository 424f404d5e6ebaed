"""sql/build.py: what it refuses, and that its fingerprint is the one of the catalog."""

from __future__ import annotations

import re

import psycopg
import pytest

from sql import build

GOOD = """
create or replace function pgque.one(a text default 'x;y') returns int
language sql
as $$ select 'a;b' $$;
do $$ begin perform 1; end $$;
-- create function pgque.commented() as 'x';
create procedure pgque.two() language plpgsql as $$
begin commit; end $$;
"""


def test_functions_are_found_with_the_text_that_the_catalog_keeps() -> None:
    """Names and bodies, whatever comments, strings and do blocks stand around them."""
    assert list(build.functions(GOOD)) == [
        ("pgque.one", " select 'a;b' "),
        ("pgque.two", "\nbegin commit; end "),
    ]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("create function pgque.f() returns int language sql as 'select 1';", "f: body is not"),
        ("create function pgque.f() returns int as $b$ x $b$ language sql;", "f: body is not"),
        ("create function pgque.f() returns int as $$ x $$ language sql;", "f: body is not"),
        ("create function pgque.f() returns int\nas\n$$ x $$;", ":1: pgque.f: body is not"),
        ("create function pgque.f() returns int return 1;", "f: body is not"),
        ("create function pgque.f() returns int begin atomic select 1; end;", "f: body is not"),
        ("select 1;\n\\echo hello\n", ":2: a backslash command"),
        ("select 1;\nBEGIN;\n", ":2: `BEGIN`, but the caller"),
        ("/* two\nlines */ select 1;\n  commit;\n", ":3: `commit`, but the caller"),
    ],
)
def test_sources_that_a_driver_or_the_fingerprint_cannot_carry_are_refused(
    source: str, complaint: str
) -> None:
    """With file, line and reason."""
    with pytest.raises(build.SourceError, match=re.escape(complaint)):
        list(build.functions(source))


def test_fingerprint_in_the_file_is_that_of_a_fresh_database(conn: psycopg.Connection) -> None:
    """The expression documented in sql/build.py gives what was put into pgque.sql."""
    assert build.__doc__ is not None
    expression = build.__doc__[build.__doc__.index("    select encode") :].split("\n\n")[0]
    parts = [(p.name, p.read_text("utf-8")) for p in build.SQL.glob("src/*.sql")]
    bodies = [
        found
        for name, text in parts
        for found in build.functions(text.replace("@VERSION@", build.version()), name)
    ]
    expected = build.fingerprint(bodies)
    row = conn.execute(expression.replace("@FINGERPRINT@", expected).encode()).fetchone()
    assert row == (expected,)
