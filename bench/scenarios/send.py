"""Sending, against plain INSERTs into a table of the same shape and indexes, by pgbench."""

from __future__ import annotations

import psycopg

from bench import pgbench
from bench.figures import median_ratio, medians, take_turns
from bench.report import Demand, Result
from bench.server import fresh_database

PAYLOAD = (
    '{"order_id": 4711, "customer": "c-815", "total": "129.90", "currency": "EUR",'
    ' "items": 3, "channel": "web", "paid": 1}'
)
BATCH = 1000
CLIENTS = 2

# What send fills in by itself, the plain table has as defaults, so that its INSERT is as short as
# a user's would be.
_TABLES = """
    select pgque.create_queue('bench');
    create table plain_event (like pgque.event including all)
        with (autovacuum_enabled = false, toast.autovacuum_enabled = false);
    create sequence plain_event_id_seq;
    alter table plain_event
        alter ev_txid set default pg_current_xact_id(),
        alter ev_id set default nextval('plain_event_id_seq'),
        alter ev_time set default clock_timestamp(),
        alter ev_slot set default 0,
        alter ev_queue set default 0;
"""

_INSERT_ONE = "insert into plain_event (ev_type, ev_data) values ('order', :payload);"
_SEND_ONE = "select pgque.send('bench', 'order', :payload::text);"

# A constant, parsed once by either side.
_ARRAY = "array[" + ",".join([f"'{PAYLOAD}'"] * BATCH) + "]"
_INSERT_MANY = f"insert into plain_event (ev_type, ev_data) select 'order', unnest({_ARRAY});"
_SEND_MANY = f"select pgque.send_batch('bench', 'order', {_ARRAY});"


def one(server: str, rounds: int, quick: bool) -> Result:
    """One message a transaction."""
    return _compare(server, rounds, quick, (_INSERT_ONE, _SEND_ONE), size=1, at_least=0.7)


def many(server: str, rounds: int, quick: bool) -> Result:
    """A thousand messages a transaction."""
    return _compare(server, rounds, quick, (_INSERT_MANY, _SEND_MANY), size=BATCH, at_least=0.75)


def _compare(
    server: str, rounds: int, quick: bool, scripts: tuple[str, str], *, size: int, at_least: float
) -> Result:
    seconds = 1 if quick else 3
    insert, send = scripts

    def run(script: str) -> float:
        _empty_tables(dsn)
        return pgbench.rate(dsn, script, seconds=seconds, clients=CLIENTS, payload=PAYLOAD) * size

    with fresh_database(server) as dsn:
        _make_tables(dsn)
        run(send)
        runs = take_turns(rounds, {"insert": lambda: run(insert), "send": lambda: run(send)})
    ratio = median_ratio(runs, "send", "insert")
    return Result(
        demands=[Demand("rate of sending, relative to plain INSERTs", ratio, at_least=at_least)],
        figures={"messages_per_second": medians(runs), "ratio": ratio},
        setup={
            "clients": CLIENTS,
            "messages_per_transaction": size,
            "payload_bytes": len(PAYLOAD),
            "seconds_per_run": seconds,
            "synchronous_commit": "off",
        },
        runs=runs,
    )


def _make_tables(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(_TABLES)
        counts = conn.execute("""
            select distinct count(*) from pg_index
             where indrelid in ('plain_event'::regclass, 'pgque.event_1_0'::regclass)
             group by indrelid""").fetchall()
    if len(counts) != 1:
        raise RuntimeError(f"the tables are not alike: {counts} indexes")


def _empty_tables(dsn: str) -> None:
    """Let each run begin with tables of the same size."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("truncate pgque.event, plain_event")
