"""Promises 1 to 4 in a storm: all that can happen at once does, and every message is counted."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import psycopg
import pytest

from tests.fix_db import Connect
from tests.race.sessions import at_once, replace_body, use_up_transaction_numbers
from tests.sql.calls import ack, configure, nack, receive, send, subscribe, tick, value

CONSUMERS = ("a", "b")
ROUNDS = 40


class Storm:
    """One queue, the sessions on it, and what they did to its messages."""

    def __init__(self, connect: Connect, queue: str, seed: int) -> None:
        self.connect = connect
        self.queue = queue
        self.seed = seed
        self.sent: list[str] = []  # committed
        self.settled = {name: Counter[str]() for name in CONSUMERS}
        self.nacked = {name: Counter[str]() for name in CONSUMERS}

    def produce(self, number: int) -> None:
        """Transactions of all lengths, some rolled back as a whole or in part."""
        chance = random.Random(self.seed * 100 + number)
        conn = self.connect(autocommit=False)
        for i in range(ROUNDS):
            texts = [f"{number}.{i}.{j}" for j in range(chance.choice([1, 1, 1, 2, 30]))]
            if chance.random() < 0.3:
                use_up_transaction_numbers(conn)
            if chance.random() < 0.2:
                conn.execute("savepoint s")
                send(conn, self.queue, "rolled back")
                conn.execute("rollback to s")
            if len(texts) > 2:
                value(conn, "select pgque.send_batch(%s, %s::text[])", self.queue, texts)
            else:
                send(conn, self.queue, *texts)
            if chance.random() < 0.3:
                conn.execute("select pg_sleep(0.02)")
            if chance.random() < 0.2:
                conn.rollback()
            else:
                conn.commit()
                self.sent += texts

    def tick(self, number: int) -> None:
        """Tickers of both kinds, some in transactions that stay open or are rolled back."""
        chance = random.Random(self.seed * 100 + 50 + number)
        conn = self.connect(autocommit=False)
        for _ in range(ROUNDS * 2):
            call = chance.choice(["ticker()", "ticker('{}')", "tick_if_new('{}')"])
            if chance.random() < 0.3:
                value(conn, "select pgque.force_next_tick(%s)", self.queue)
            value(conn, f"select pgque.{call.format(self.queue)}")
            conn.execute("select pg_sleep(%s)", [chance.choice([0, 0.005, 0.03])])
            conn.rollback() if chance.random() < 0.1 else conn.commit()

    def consume(self, name: str) -> None:
        """Take pieces of all sizes for some time."""
        chance = random.Random(f"{self.seed} {name}")
        conn = self.connect(autocommit=False)
        for _ in range(ROUNDS * 5):
            self.take(conn, name, chance)

    def take(self, conn: psycopg.Connection, name: str, chance: random.Random) -> int:
        """Receive a piece; settle it, give part of it back, or roll all of that back."""
        value(conn, "select pgque.tick_if_new(%s)", self.queue)
        conn.commit()
        messages = receive(conn, self.queue, name, chance.choice([1, 3, 50]))
        if chance.random() < 0.5:
            conn.commit()
        if not messages:
            conn.rollback()
            return 0
        batch = messages[0].batch_id
        whole = chance.random() < 0.7
        if not whole:
            messages = messages[: chance.randint(1, len(messages))]
        # None of what is given back: such a message would come twice, by itself and as a retry.
        refused = [m for m in messages if chance.random() < 0.1 and (m.retry_count or 0) < 3]
        for message in refused:
            nack(conn, message)
        if whole:
            assert ack(conn, batch) == 1
        else:
            value(conn, "select pgque.ack_to(%s, %s)", batch, messages[-1].msg_id)
            value(conn, "select pgque.release(%s)", batch)
        if chance.random() < 0.1:
            conn.rollback()
            return 1
        conn.commit()
        self.nacked[name].update(m.payload for m in refused)
        self.settled[name].update(m.payload for m in messages)
        return 1

    def keep_up(self) -> None:
        """Rotation and reclaiming without rest."""
        conn = self.connect()
        for _ in range(ROUNDS * 2):
            value(conn, "select pgque.maint()")
            conn.execute("select pg_sleep(0.005)")


@pytest.mark.parametrize("seed", [1, 2])
def test_every_message_is_settled_once_by_each_consumer(
    conn: psycopg.Connection, topic: str, connect: Connect, seed: int
) -> None:
    """And once more for each nack; nothing that was rolled back ever comes."""
    replace_body(conn, "_has_grown", "begin return true; end")
    configure(conn, topic, rotation_period="1 ms", max_retries=1000)
    subscribe(conn, topic, *CONSUMERS)
    storm = Storm(connect, topic, seed)
    at_once(
        [
            *(partial(storm.produce, number) for number in range(4)),
            *(partial(storm.tick, number) for number in range(2)),
            *(partial(storm.consume, name) for name in CONSUMERS),
            storm.keep_up,
        ]
    )
    calm = random.Random(seed)
    session = connect(autocommit=False)
    for name in CONSUMERS:
        idle = 0
        while idle < 5:
            value(conn, "select pgque.maint_retry_events()")
            tick(conn, topic)
            idle = 0 if storm.take(session, name, calm) else idle + 1
        assert storm.settled[name] == Counter(storm.sent) + storm.nacked[name]
