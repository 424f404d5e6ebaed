"""The client: one method for one SQL function, on the caller's terms."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import pgque
from pgque import Event, PgqueClient, RawJson


def receive_all(client: PgqueClient, queue: str, consumer: str = "c") -> list[pgque.Message]:
    client.tick_if_new(queue)
    return client.receive(queue, consumer)


def test_what_is_sent_comes_back(client: PgqueClient, queue: str) -> None:
    """Payload, type, key and headers; ids rise in the order of sending."""
    client.subscribe(queue, "c")
    sent = [
        client.send(queue, {"a": [1, None, "ä\U0001f600\ud800"]}),
        client.send(queue, None, type="t", key="k", headers={"h": [1]}),
        client.send(queue, Event(1.5, type="e", key="ek", headers={})),
        client.send(queue, RawJson('{"b": 1,  "a": 2}')),
    ]
    messages = receive_all(client, queue)
    assert [m.msg_id for m in messages] == sent == sorted(sent)
    assert [m.payload for m in messages] == [
        {"a": [1, None, "ä\U0001f600\ud800"]},
        *(None, 1.5, {"b": 1, "a": 2}),
    ]
    assert [m.type for m in messages] == ["default", "t", "e", "default"]
    assert [m.key for m in messages] == [None, "k", "ek", None]
    assert [m.headers for m in messages] == [None, {"h": [1]}, {}, None]
    assert {(m.retry_count, m.delivery_count) for m in messages} == {(None, 1)}


def test_raw_json_is_stored_byte_for_byte(
    client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """What other programs read is what was given."""
    client.subscribe(queue, "c")
    client.send(queue, RawJson('{"b":1,  "a":1.50}'))
    client.tick_if_new(queue)
    row = conn.execute("select payload from pgque.receive(%s, 'c')", [queue]).fetchone()
    assert row == ('{"b":1,  "a":1.50}',)


def test_send_batch_keeps_order(client: PgqueClient, queue: str) -> None:
    """With an Event's own type, key and headers among plain payloads; [] sends nothing."""
    client.subscribe(queue, "c")
    plain = client.send_batch(queue, "t", [1, None, "x"])
    keyed = client.send_batch(queue, "t", [Event(4, "t", key="k"), Event(5, "t", headers={"h": 1})])
    mixed = client.send_batch(queue, "t", (n if n % 2 else Event(n, "even") for n in range(6, 9)))
    assert client.send_batch(queue, "t", []) == []
    messages = receive_all(client, queue)
    assert [m.msg_id for m in messages] == plain + keyed + mixed
    assert [m.payload for m in messages] == [1, None, "x", 4, 5, 6, 7, 8]
    assert [m.type for m in messages] == ["t"] * 5 + ["even", "t", "even"]
    assert [m.key for m in messages][3:5] == ["k", None]
    assert [m.headers for m in messages][3:5] == [None, {"h": 1}]


def test_a_bad_payload_in_a_batch_sends_nothing(client: PgqueClient, queue: str) -> None:
    """It is found before the server is asked."""
    client.subscribe(queue, "c")
    with pytest.raises(pgque.PgquePayloadError):
        client.send_batch(queue, "t", [1, {2}])
    assert receive_all(client, queue) == []


def test_an_event_brings_its_own_key(client: PgqueClient, queue: str) -> None:
    """A second one would be lost silently."""
    with pytest.raises(pgque.PgqueInvalidArgument):
        client.send(queue, Event(1), key="k")
    with pytest.raises(pgque.PgqueInvalidArgument):
        client.send(queue, 1, headers=[1])  # type: ignore[arg-type]


def test_ack_nack_and_ack_to(client: PgqueClient, queue: str) -> None:
    """ack_to settles up to a message, ack what was handed out, nack brings one back."""
    client.subscribe(queue, "c")
    client.send_batch(queue, "t", list(range(5)))
    client.tick_if_new(queue)
    first = client.receive(queue, "c", 3)
    assert [m.payload for m in first] == [0, 1, 2]
    assert client.ack_to(first[0].batch_id, first[1].msg_id) == 1
    assert client.nack(first[0].batch_id, first[2], 0, "nul \0 in it") == 1
    assert client.ack(first[0].batch_id) == 1
    assert client.ack(first[0].batch_id) == 0
    rest = client.receive(queue, "c")
    assert [m.payload for m in rest] == [3, 4]
    client.ack(rest[0].batch_id)
    client.maint()
    [again] = receive_all(client, queue)
    assert (again.payload, again.retry_count) == (2, 1)


@pytest.mark.parametrize("delay", [0, 1.5, dt.timedelta(minutes=1), dt.timedelta(days=-1)])
def test_nack_takes_seconds_and_timedeltas(client: PgqueClient, queue: str, delay: Any) -> None:
    """By message or by id."""
    client.subscribe(queue, "c")
    client.send(queue, 1)
    [message] = receive_all(client, queue)
    assert client.nack(message.batch_id, message.msg_id, delay) == 1


@pytest.mark.parametrize(
    ("call", "error", "sqlstate"),
    [
        (lambda c, q: c.send("no queue", 1), pgque.PgqueQueueNotFound, "QU001"),
        (lambda c, q: c.send_batch("no queue", "t", []), pgque.PgqueQueueNotFound, "QU001"),
        (lambda c, q: c.receive("no queue", "c"), pgque.PgqueQueueNotFound, "QU001"),
        (lambda c, q: c.receive(q, "nobody"), pgque.PgqueConsumerNotFound, "QU002"),
        (lambda c, q: c.receive(q, "c", 0), pgque.PgqueInvalidArgument, "QU013"),
        (lambda c, q: c.receive(q, "c", 2**31), pgque.PgqueInvalidArgument, "22003"),
        (lambda c, q: c.nack(1, 1), pgque.PgqueBatchNotFound, "QU003"),
        (lambda c, q: c.nack(2**63 - 1, 2**63 - 1), pgque.PgqueBatchNotFound, "QU003"),
        (lambda c, q: c.ack(2**63), pgque.PgqueInvalidArgument, "22003"),
        (lambda c, q: c.ack(None), pgque.PgqueInvalidArgument, "QU013"),
        (lambda c, q: c.nack(1, 1, float("inf")), pgque.PgqueInvalidArgument, None),
        (lambda c, q: c.nack(1, 1, float("nan")), pgque.PgqueInvalidArgument, None),
        (lambda c, q: c.create_queue(""), pgque.PgqueInvalidName, "QU005"),
        (lambda c, q: c.create_queue("ä" * 29), pgque.PgqueInvalidName, "QU005"),
        (lambda c, q: c.create_queue("nul \0"), pgque.PgqueInvalidArgument, None),
        (lambda c, q: c.create_queue("\ud800"), pgque.PgqueInvalidArgument, None),
        (lambda c, q: c.set_queue_config(q, "no_such", 1), pgque.PgqueInvalidConfig, "QU007"),
        (lambda c, q: c.set_queue_config(q, "max_retries", -1), pgque.PgqueInvalidConfig, "QU007"),
        (lambda c, q: c.dlq_replay(1), pgque.PgqueDeadLetterNotFound, "QU015"),
    ],
)
def test_errors_have_their_class_and_sqlstate(
    client: PgqueClient, queue: str, call: Any, error: type[pgque.PgqueError], sqlstate: str | None
) -> None:
    """And the session is as usable as before."""
    client.subscribe(queue, "c")
    with pytest.raises(error) as caught:
        call(client, queue)
    assert type(caught.value) is error
    assert caught.value.sqlstate == sqlstate
    assert client.send(queue, 1) > 0


def test_a_queue_with_consumers_is_not_dropped_by_mistake(client: PgqueClient, queue: str) -> None:
    """Only with force."""
    client.subscribe(queue, "c")
    with pytest.raises(pgque.PgqueQueueInUse):
        client.drop_queue(queue)
    assert client.drop_queue(queue, force=True) == 1


def test_without_the_schema_the_error_says_what_to_do(empty_dsn: str) -> None:
    """For a missing schema, whatever is called."""
    with pgque.connect(empty_dsn) as client, pytest.raises(pgque.PgqueNotInstalled) as caught:
        client.send("q", 1)
    assert "pgque install" in str(caught.value.hint)


def test_a_read_only_transaction_is_named(client: PgqueClient, queue: str) -> None:
    """As on a standby."""
    client.conn.execute("set default_transaction_read_only = on")
    with pytest.raises(pgque.PgqueReadOnlyServer):
        client.send(queue, 1)


def test_sending_belongs_to_the_callers_transaction(connect: Any, queue: str) -> None:
    """The client neither commits nor rolls back on a connection that it was given."""
    conn = connect(autocommit=False)
    with PgqueClient(conn) as client:
        client.subscribe(queue, "c")
        conn.commit()
        client.send(queue, "rolled back")
        conn.rollback()
        client.send(queue, "committed")
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    client.close()
    assert not conn.closed
    conn.commit()
    assert [m.payload for m in receive_all(client, queue)] == ["committed"]


def test_the_callers_factories_do_not_matter(connect: Any, queue: str) -> None:
    """Row factory, cursor factory, pipeline."""
    conn = connect(row_factory=dict_row, cursor_factory=psycopg.ClientCursor)
    client = PgqueClient(conn)
    client.subscribe(queue, "c")
    with conn.pipeline():
        client.send(queue, 1)
    assert [m.payload for m in receive_all(client, queue)] == [1]
    assert conn.row_factory is dict_row


def test_a_client_of_its_own_commits_at_the_end_of_its_block(dsn: str, queue: str) -> None:
    """As psycopg's connections do; an exception rolls back."""
    with pgque.connect(dsn) as client:
        client.subscribe(queue, "c")
    with pytest.raises(ZeroDivisionError), pgque.connect(dsn) as client:
        client.send(queue, 1 / (client.send(queue, 1) * 0))
    with pgque.connect(dsn) as client:
        client.send(queue, 2)
    assert client.conn.closed
    with pgque.connect(dsn, autocommit=True) as client:
        assert [m.payload for m in receive_all(client, queue)] == [2]


def test_a_lost_connection_is_a_connection_error(
    client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """At the call that notices, and at those after it."""
    conn.execute("select pg_terminate_backend(%s)", [client.conn.info.backend_pid])
    for _ in range(2):
        with pytest.raises(pgque.PgqueConnectionError):
            client.send(queue, 1)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:SeCret@127.0.0.1:1/db",
        "postgresql://user:pa@SeCret@127.0.0.1:1/db",
        "postgresql://user:SeCret/x@127.0.0.1:1/db",
        "postgresql://user:SeCret%zz@127.0.0.1:1/db",
        "postgresql://user:x?SeCret@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=x SeCret",
        "host=127.0.0.1 port=1 password='SeCret",
        "host=127.0.0.1 port=1 password=SeCret",
    ],
)
def test_no_password_in_connection_errors(dsn: str) -> None:
    """Also where it was badly quoted, so that libpq takes it for something else."""
    with pytest.raises(pgque.PgqueConnectionError) as caught:
        pgque.connect(dsn)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert not re.search("secret", f"{chain!r} {chain}", re.IGNORECASE)
        chain = chain.__cause__


def test_force_tick_is_deprecated(client: PgqueClient, queue: str) -> None:
    """It says so, and works."""
    client.send(queue, 1)
    with pytest.warns(DeprecationWarning, match="force_next_tick"):
        client.force_tick(queue)
    assert client.ticker(queue) is not None
    assert client.ticker(queue) is None
    assert client.ticker_all() >= 0


def test_queues_are_created_paused_and_configured(client: PgqueClient) -> None:
    """Options may be timedeltas, numbers and booleans."""
    assert client.create_queue('ä.%"Q', {"max_retries": 1}) == 1
    assert client.create_queue('ä.%"Q') == 0
    client.set_queue_config('ä.%"Q', "ticker_max_lag", dt.timedelta(seconds=7))
    client.pause_queue('ä.%"Q')
    [info] = client.queue_info('ä.%"Q')
    assert info.queue_ticker_max_lag == dt.timedelta(seconds=7)
    assert info.queue_ticker_paused
    client.resume_queue('ä.%"Q')
    client.set_queue_config('ä.%"Q', "ticker_max_lag", None)
    [info] = client.queue_info('ä.%"Q')
    assert (info.queue_ticker_paused, info.queue_ticker_max_lag) == (False, dt.timedelta(seconds=3))
    assert client.drop_queue('ä.%"Q') == 1


def test_looking(client: PgqueClient, queue: str) -> None:
    """Typed rows, with PgQ's names."""
    client.subscribe(queue, "c")
    client.subscribe(queue, "d")
    assert queue in [info.queue_name for info in client.queue_info()]
    assert [i.consumer_name for i in client.consumer_info(queue)] == ["c", "d"]
    assert [i.consumer_name for i in client.consumer_info(queue, "d")] == ["d"]
    assert len(client.consumer_info()) == 2
    assert {row.status for row in client.status()} <= {"ok", "warning", "error"}
    assert client.version()
    assert client.unsubscribe(queue, "d") == 1
    assert client.unsubscribe(queue, "d") == 0


def test_dead_letters(client: PgqueClient, queue: str) -> None:
    """Seen with the whole message, replayed to the consumer that failed, purged by age."""
    client.set_queue_config(queue, "max_retries", 0)
    client.subscribe(queue, "c")
    client.send_batch(queue, "t", [Event({"n": n}, "t", "k", {"h": n}) for n in range(3)])
    for message in receive_all(client, queue):
        client.nack(message.batch_id, message, reason=f"reason {message.payload['n']}")
    client.ack(message.batch_id)
    dead = sorted(client.dlq_inspect(queue), key=lambda d: d.msg_id)
    assert [(d.reason, d.payload, d.key, d.headers) for d in dead] == [
        (f"reason {n}", {"n": n}, "k", {"h": n}) for n in range(3)
    ]
    assert len(client.dlq_inspect(queue, 1)) == 1
    client.dlq_replay(dead[0].id)
    with pytest.raises(pgque.PgqueDeadLetterNotFound):
        client.dlq_replay(dead[0].id)
    assert client.dlq_replay_all(queue) == pgque.ReplayResult(2, 0, None)
    assert [m.payload["n"] for m in receive_all(client, queue)] == [0, 1, 2]
    assert client.dlq_purge(queue, dt.timedelta(0)) == 0


def test_members_share_a_consumer(client: PgqueClient, queue: str) -> None:
    """Each method answers what its SQL function does; dead_interval in all its forms."""
    assert client.subscribe_subconsumer(queue, "g", "a") == 1
    assert client.subscribe_subconsumer(queue, "g", "a") == 0
    client.send_batch(queue, "t", range(6))
    client.tick_if_new(queue)
    batches = [
        client.receive_coop(queue, "g", member, 2, dead)
        for member, dead in (("a", 60), ("b", dt.timedelta(minutes=1)), ("c", "1 minute"))
    ]
    assert [[m.payload for m in batch] for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert client.receive_coop(queue, "g", "d", dead_interval=1e9) == []
    assert client.touch_subconsumer(queue, "g", "a") == 1
    assert client.touch_subconsumer(queue, "g", "nobody") == 0
    (first, _), (third, _), _ = batches
    assert client.release(first.batch_id) == 1
    assert client.release(first.batch_id) == 0
    assert [m.payload for m in client.receive_coop(queue, "g", "d")] == [0, 1]
    with pytest.raises(pgque.PgqueLeaseLost):
        client.ack_to(first.batch_id, first.msg_id)
    with pytest.raises(pgque.PgqueCooperativeMisuse):
        client.unsubscribe_subconsumer(queue, "g", "b")
    assert client.unsubscribe_subconsumer(queue, "g", "b", 1) == 1
    assert client.unsubscribe_subconsumer(queue, "g", "b") == 0
    assert client.ack(third.batch_id) == 0


def test_a_normal_consumer_becomes_cooperative(client: PgqueClient, queue: str) -> None:
    """Where that is asked for."""
    client.subscribe(queue, "c")
    with pytest.raises(pgque.PgqueCooperativeMisuse):
        client.subscribe_subconsumer(queue, "c", "a")
    assert client.subscribe_subconsumer(queue, "c", "a", convert_normal=True) == 1


@pytest.mark.parametrize("dead", [0, -1, float("inf"), float("nan"), "soon", 1e300, ""])
def test_an_odd_dead_interval_is_refused(client: PgqueClient, queue: str, dead: Any) -> None:
    """Nothing is guessed."""
    with pytest.raises(pgque.PgqueInvalidArgument):
        client.receive_coop(queue, "g", "a", dead_interval=dead)
