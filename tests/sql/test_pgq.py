"""A consumer that was written for PgQ runs here: its primitives, with PgQ's results."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.calls import (
    ack,
    bring_back,
    configure,
    receive,
    refused,
    row,
    rows,
    send,
    subscribe,
    take,
    tick,
    value,
)


def events(conn: psycopg.Connection, batch_id: int) -> list[str]:
    """Payloads of the batch."""
    found = rows(conn, "select ev_data from pgque.get_batch_events(%s)", batch_id)
    return [event.ev_data for event in found]


def next_batch(conn: psycopg.Connection, queue: str) -> int | None:
    """The id of the next batch, if there is one."""
    batch_id = value(conn, "select pgque.next_batch(%s, 'c')", queue)
    assert batch_id is None or isinstance(batch_id, int)
    return batch_id


def test_pgqs_loop(conn: psycopg.Connection, queue: str) -> None:
    """register_consumer, next_batch, get_batch_events, finish_batch."""
    assert value(conn, "select pgque.register_consumer(%s, 'c')", queue) == 1
    assert value(conn, "select pgque.register_consumer(%s, 'c')", queue) == 0
    assert next_batch(conn, queue) is None
    value(conn, "select pgque.insert_event(%s, 't', 'd', '1', '2', '3', '4')", queue)
    tick(conn, queue)
    batch_id = next_batch(conn, queue)
    assert batch_id is not None
    assert next_batch(conn, queue) == batch_id
    event = row(conn, "select * from pgque.get_batch_events(%s)", batch_id)
    assert (event.ev_type, event.ev_data, event.ev_retry) == ("t", "d", None)
    assert event[-4:] == ("1", "2", "3", "4")
    assert isinstance(event.ev_txid, int)
    assert value(conn, "select pgque.finish_batch(%s)", batch_id) == 1
    assert value(conn, "select pgque.finish_batch(%s)", batch_id) == 0
    assert value(conn, "select pgque.unregister_consumer(%s, 'c')", queue) == 1


def test_a_batch_is_one_window_and_may_be_empty(conn: psycopg.Connection, topic: str) -> None:
    """As in PgQ, whose consumers finish empty batches too."""
    tick(conn, topic)
    batch_id = next_batch(conn, topic)
    assert batch_id is not None
    assert events(conn, batch_id) == []
    send(conn, topic, "1")
    tick(conn, topic)
    send(conn, topic, "2")
    tick(conn, topic)
    assert ack(conn, batch_id) == 1
    for expected in ("1", "2"):
        batch_id = next_batch(conn, topic)
        assert batch_id is not None
        assert events(conn, batch_id) == [expected]
        ack(conn, batch_id)
    assert next_batch(conn, topic) is None


def test_next_batch_info_tells_the_ticks(conn: psycopg.Connection, topic: str) -> None:
    """All NULL if there is no batch; get_batch_info says the same."""
    nothing = row(conn, "select * from pgque.next_batch_info(%s, 'c')", topic)
    assert set(nothing) == {None}
    (msg_id,) = send(conn, topic, "x")
    made = tick(conn, topic)
    info = row(conn, "select * from pgque.next_batch_info(%s, 'c')", topic)
    assert info.cur_tick_id == made
    assert info.prev_tick_id < made
    assert info.prev_tick_event_seq < msg_id == info.cur_tick_event_seq
    assert info.cur_tick_time >= info.prev_tick_time
    found = row(conn, "select * from pgque.get_batch_info(%s)", info.batch_id)
    assert (found.prev_tick_id, found.tick_id) == (info.prev_tick_id, made)
    assert (found.batch_start, found.batch_end) == (info.prev_tick_time, info.cur_tick_time)


def test_next_batch_custom_waits_for_lag_count_or_interval(
    conn: psycopg.Connection, topic: str
) -> None:
    """And then takes several windows as one batch."""
    call = "select batch_id from pgque.next_batch_custom(%s, 'c', {}, {}, {})"
    for text in ("1", "2", "3"):
        send(conn, topic, text)
        tick(conn, topic)
    for conditions in (("'1 hour'", "null", "null"), ("null", "4", "'1 hour'")):
        assert value(conn, call.format(*conditions), topic) is None
    batch_id = value(conn, call.format("null", "2", "null"), topic)
    assert events(conn, batch_id) == ["1", "2"]
    ack(conn, batch_id)
    batch_id = value(conn, call.format("'0'", "null", "'0'"), topic)
    assert events(conn, batch_id) == ["3"]


def test_get_batch_cursor_fetches_the_rest_from_a_cursor(
    conn: psycopg.Connection, topic: str
) -> None:
    """The first quick_limit rows at once, the others by FETCH in the same transaction."""
    value(conn, "select pgque.send_batch(%s, '{1,2,3,4,5}'::text[])", topic)
    tick(conn, topic)
    batch_id = next_batch(conn, topic)
    with conn.transaction():
        call = "select ev_data from pgque.get_batch_cursor(%s, 'Odd name', %s)"
        assert [e.ev_data for e in rows(conn, call, batch_id, 2)] == ["1", "2"]
        assert [e.ev_data for e in rows(conn, 'fetch 2 from "Odd name"')] == ["3", "4"]
        assert [e.ev_data for e in rows(conn, 'fetch all from "Odd name"')] == ["5"]
        assert rows(conn, call.replace("Odd", "New"), batch_id, 0) == []
    for limit in (-1, None):
        with refused("QU013", "quick_limit"):
            rows(conn, "select pgque.get_batch_cursor(%s, 'x', %s::int)", batch_id, limit)


def test_events_are_retried_and_buried(conn: psycopg.Connection, topic: str) -> None:
    """event_retry by seconds and by time, event_dead; 0 for the second time."""
    configure(conn, topic, max_retries=0)  # event_retry does not count, as in PgQ
    send(conn, topic, "1", "2", "3", "4")
    tick(conn, topic)
    batch_id = next_batch(conn, topic)
    ids = [e.ev_id for e in rows(conn, "select * from pgque.get_batch_events(%s)", batch_id)]
    calls = ["event_retry(%s, %s, 0)", "event_retry(%s, %s, now())", "event_dead(%s, %s, 'bad')"]
    for expected in (1, 0):
        for call, event_id in zip(calls, ids, strict=False):
            assert value(conn, f"select pgque.{call}", batch_id, event_id) == expected
    ack(conn, batch_id or 0)
    bring_back(conn, topic)
    found = [(message.payload, message.retry_count) for message in receive(conn, topic)]
    assert found == [("1", 1), ("2", 1)]
    assert row(conn, "select * from pgque.dlq_inspect(%s)", topic).ev_id == ids[2]


def test_a_whole_batch_is_retried(conn: psycopg.Connection, topic: str) -> None:
    """batch_retry, then finish_batch; ids stay what they were."""
    ids = send(conn, topic, "1", "2")
    tick(conn, topic)
    batch_id = next_batch(conn, topic)
    assert value(conn, "select pgque.batch_retry(%s, 0)", batch_id) == 2
    assert value(conn, "select pgque.batch_retry(%s, 0)", batch_id) == 0
    ack(conn, batch_id or 0)
    bring_back(conn, topic)
    assert [message.msg_id for message in receive(conn, topic)] == ids


def test_pieces_and_whole_windows_go_together(conn: psycopg.Connection, topic: str) -> None:
    """next_batch after part of a window was settled by receive and ack brings the rest."""
    value(conn, "select pgque.send_batch(%s, '{1,2,3}'::text[])", topic)
    tick(conn, topic)
    ack(conn, receive(conn, topic, limit=1)[0].batch_id)
    batch_id = next_batch(conn, topic)
    assert batch_id is not None
    assert events(conn, batch_id) == ["2", "3"]
    ack(conn, batch_id)
    assert take(conn, topic) == []


def test_register_consumer_at_moves_the_position(conn: psycopg.Connection, topic: str) -> None:
    """Back and forth, to ticks that exist; an open batch is closed."""
    first = tick(conn, topic)
    send(conn, topic, "1")
    second = tick(conn, topic)
    send(conn, topic, "2")
    tick(conn, topic)
    call = "select pgque.register_consumer_at(%s, %s, %s)"
    assert take(conn, topic) == ["1", "2"]
    assert value(conn, call, topic, "c", second) == 0
    (message,) = receive(conn, topic)
    assert message.payload == "2"
    assert value(conn, call, topic, "c", first) == 0
    assert ack(conn, message.batch_id) == 0
    assert take(conn, topic) == ["1", "2"]
    assert value(conn, call, topic, "new", second) == 1
    assert take(conn, topic, "new") == ["2"]
    assert value(conn, call, topic, "newest", None) == 1
    assert take(conn, topic, "newest") == []


@pytest.mark.parametrize("tick_id", [0, -1, 10**6, 2**31, 2**63 - 1])
def test_a_tick_that_does_not_exist(conn: psycopg.Connection, topic: str, tick_id: int) -> None:
    """QU010, and no subscription is made."""
    with refused("QU010", "new", str(tick_id)):
        value(conn, "select pgque.register_consumer_at(%s, 'new', %s)", topic, tick_id)
    with refused("QU002"):
        receive(conn, topic, "new")


def test_positions_before_what_was_truncated_are_refused(own: psycopg.Connection) -> None:
    """QU010 names the consumer: what it would have missed is an error, never silence."""
    old = tick(own, "q")
    send(own, "q", "1")
    tick(own, "q")
    assert take(own, "q") == ["1"]
    configure(own, "q", rotation_period="1 ms")
    for _ in range(3):
        own.execute("select pg_sleep(0.002)")
        value(own, "select pgque.maint()")
    assert value(own, "select count(*) from pgque.event") == 0
    with refused("QU010", "late"):
        value(own, "select pgque.register_consumer_at('q', 'late', %s)", old)
    newest = tick(own, "q")
    assert value(own, "select pgque.register_consumer_at('q', 'late', %s)", newest) == 1


def test_the_views_carry_pgqs_columns(conn: psycopg.Connection, topic: str) -> None:
    """People's dashboards read them."""
    subscribe(conn, topic, "d")
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic, "d")
    found = row(
        conn,
        "select s.* from pgque.subscription s join pgque.queue q on q.queue_id = s.sub_queue"
        " join pgque.consumer c on c.co_id = s.sub_consumer"
        " where q.queue_name = %s and c.co_name = 'd'",
        topic,
    )
    assert found.sub_batch == message.batch_id
    assert found.sub_next_tick > found.sub_last_tick
    columns = {
        "queue": "queue_id queue_name queue_ntables queue_cur_table queue_rotation_period"
        " queue_switch_time queue_external_ticker queue_ticker_paused queue_ticker_max_count"
        " queue_ticker_max_lag queue_ticker_idle_period queue_data_pfx queue_event_seq"
        " queue_tick_seq",
        "consumer": "co_id co_name",
        "subscription": "sub_id sub_queue sub_consumer sub_last_tick sub_active sub_batch"
        " sub_next_tick",
        "tick": "tick_queue tick_id tick_time tick_snapshot tick_event_seq",
        "retry_queue": "ev_retry_after ev_queue ev_id ev_time ev_txid ev_owner ev_retry ev_type"
        " ev_data ev_extra1 ev_extra2 ev_extra3 ev_extra4",
    }
    for name, wanted in columns.items():
        conn.execute(f"select {', '.join(wanted.split())} from pgque.{name} limit 0".encode())
