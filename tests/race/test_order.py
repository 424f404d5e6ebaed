"""Field case 34: senders that are serialised by a row lock see their order kept, for each key."""

from __future__ import annotations

import random
from functools import partial

import psycopg
import pytest

from tests.fix_db import Connect
from tests.race.sessions import at_once, use_up_transaction_numbers
from tests.sql.calls import receive, rows, send, take, tick, value


def test_the_later_transaction_number_sends_first(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """A takes its number, B updates the row, sends and commits, A updates it, sends and commits."""
    conn.execute("create table public.account (version int); insert into public.account values (0)")
    for tick_between in (False, True):
        a, b = connect(autocommit=False), connect(autocommit=False)
        use_up_transaction_numbers(a)
        for session, text in ((b, "first"), (a, "second")):
            session.execute("update public.account set version = version + 1")
            send(session, topic, text)
            session.commit()
            if tick_between:
                tick(conn, topic)
        tick(conn, topic)
        assert take(conn, topic) == ["first", "second"]


def produce(conn: psycopg.Connection, queue: str, choose: random.Random) -> None:
    """Count up one or two rows under their locks, and send each number with its key."""
    if choose.random() < 0.5:
        use_up_transaction_numbers(conn)
    for key in sorted(choose.sample(range(1, 4), choose.randint(1, 2))):
        number = value(conn, "update public.counter set n = n + 1 where k = %s returning n", key)
        text = "select pgque.send(%s, 't', %s::text, %s::text)"
        value(conn, text, queue, str(number), str(key))
    conn.rollback() if choose.random() < 0.1 else conn.commit()


def consume(conn: psycopg.Connection, queue: str, limit: int, taken: dict[str, list[int]]) -> int:
    """Tick and take one piece; returns how many messages it had."""
    value(conn, "select pgque.tick_if_new(%s)", queue)
    messages = receive(conn, queue, limit=limit)
    for message in messages:
        taken[message.key].append(int(message.payload))
    if messages:
        value(conn, "select pgque.ack(%s)", messages[0].batch_id)
    return len(messages)


@pytest.mark.parametrize("seed", range(4))
def test_random_senders_of_some_keys(
    conn: psycopg.Connection, topic: str, connect: Connect, seed: int
) -> None:
    """Six sessions send beside each other; ticks and pieces fall in between as they like. Every
    key's numbers arrive in order, each once."""
    conn.execute("create table public.counter as select k, 0 as n from generate_series(1, 3) k")
    taken: dict[str, list[int]] = {"1": [], "2": [], "3": []}
    limit = random.Random(seed).choice([1, 3, 100])
    consumer = connect()

    def producer(number: int) -> None:
        choose = random.Random(seed * 10 + number)
        session = connect(autocommit=False)
        for _ in range(15):
            produce(session, topic, choose)

    def reader() -> None:
        for _ in range(60):
            consume(consumer, topic, limit, taken)

    at_once([reader, *(partial(producer, number) for number in range(6))])
    while consume(conn, topic, limit, taken):
        pass
    for counter in rows(conn, "select * from public.counter"):
        assert taken[str(counter.k)] == list(range(1, counter.n + 1))
