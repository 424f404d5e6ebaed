"""Statements that manage and look: queues, ticks, upkeep, dead letters. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pgque._payload import decode, encode
from pgque._statements import Call, Row, nothing, value
from pgque.records import ComponentStatus, ConsumerInfo, DeadLetterRecord, QueueInfo, ReplayResult

# queues


def create_queue(queue: str, options: Mapping[str, Any] | None) -> Call[int]:
    if options is None:
        return Call("select pgque.create_queue(%s::text)", (queue,), value)
    query = "select pgque.create_queue(%s::text, %s::jsonb)"
    return Call(query, (queue, encode(dict(options))), value)


def drop_queue(queue: str, force: bool) -> Call[int]:
    return Call("select pgque.drop_queue(%s::text, %s::boolean)", (queue, force), value)


def set_queue_config(queue: str, param: str, setting: object) -> Call[int]:
    query = "select pgque.set_queue_config(%s::text, %s::text, %s::text)"
    return Call(query, (queue, param, _setting(setting)), value)


def _setting(setting: object) -> str | None:
    if isinstance(setting, timedelta):
        return f"{setting.total_seconds()} seconds"
    if isinstance(setting, bool):
        return str(setting).lower()
    return None if setting is None else str(setting)


def pause_queue(queue: str) -> Call[None]:
    return Call("select pgque.pause_queue(%s::text)", (queue,), nothing)


def resume_queue(queue: str) -> Call[None]:
    return Call("select pgque.resume_queue(%s::text)", (queue,), nothing)


# ticker and upkeep


def ticker(queue: str) -> Call[int | None]:
    return Call("select pgque.ticker(%s::text)", (queue,), value)


def ticker_all() -> Call[int]:
    return Call("select pgque.ticker()", (), value)


def tick_if_new(queue: str) -> Call[int | None]:
    return Call("select pgque.tick_if_new(%s::text)", (queue,), value)


def force_next_tick(queue: str) -> Call[int | None]:
    return Call("select pgque.force_next_tick(%s::text)", (queue,), value)


def maint() -> Call[int]:
    return Call("select pgque.maint()", (), value)


# looking


def version() -> Call[str]:
    return Call("select pgque.version()", (), value)


def status() -> Call[list[ComponentStatus]]:
    query = "select component, status, detail, action from pgque.status()"
    return Call(query, (), lambda rows: [ComponentStatus(*row) for row in rows])


def queue_info(queue: str | None) -> Call[list[QueueInfo]]:
    columns = """
        select queue_name, queue_ntables, queue_cur_table, queue_rotation_period,
               queue_switch_time, queue_external_ticker, queue_ticker_paused,
               queue_ticker_max_count, queue_ticker_max_lag, queue_ticker_idle_period,
               ticker_lag, ev_per_sec, ev_new, last_tick_id"""
    if queue is None:
        return Call(columns + " from pgque.get_queue_info()", (), _queue_infos)
    return Call(columns + " from pgque.get_queue_info(%s::text)", (queue,), _queue_infos)


def _queue_infos(rows: list[Row]) -> list[QueueInfo]:
    return [QueueInfo(*row) for row in rows]


def consumer_info(queue: str | None, consumer: str | None) -> Call[list[ConsumerInfo]]:
    columns = """
        select queue_name, consumer_name, lag, last_seen, last_tick, current_batch, next_tick,
               pending_events"""
    if queue is None:
        return Call(columns + " from pgque.get_consumer_info()", (), _consumer_infos)
    if consumer is None:
        one = columns + " from pgque.get_consumer_info(%s::text)"
        return Call(one, (queue,), _consumer_infos)
    two = columns + " from pgque.get_consumer_info(%s::text, %s::text)"
    return Call(two, (queue, consumer), _consumer_infos)


def _consumer_infos(rows: list[Row]) -> list[ConsumerInfo]:
    return [ConsumerInfo(*row) for row in rows]


# dead letters


def dlq_inspect(queue: str, limit: int) -> Call[list[DeadLetterRecord]]:
    query = """
        select dl_id, queue_name, consumer_name, dl_time, dl_reason,
               ev_id, ev_type, ev_data, ev_retry, ev_time,
               ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers::text
          from pgque.dlq_inspect(%s::text, %s::int)"""
    return Call(query, (queue, limit), lambda rows: [_dead_letter(row) for row in rows])


def _dead_letter(row: Row) -> DeadLetterRecord:
    record = DeadLetterRecord(*row)
    headers: Any = record.headers  # still text, as the payload is
    return replace(record, payload=decode(record.payload), headers=decode(headers))


def dlq_replay(dead_letter_id: int) -> Call[int]:
    return Call("select pgque.dlq_replay(%s::bigint)", (dead_letter_id,), value)


def dlq_replay_all(queue: str) -> Call[ReplayResult]:
    query = "select replayed, failed, first_error from pgque.dlq_replay_all(%s::text)"
    return Call(query, (queue,), lambda rows: ReplayResult(*rows[0]))


def dlq_purge(queue: str, older_than: timedelta) -> Call[int]:
    query = "select pgque.dlq_purge(%s::text, %s::interval)"
    return Call(query, (queue, older_than), value)
