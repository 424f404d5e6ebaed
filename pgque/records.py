"""What the looking functions return. Names are those of PgQ's columns where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """How one part of the installation does; `status` is ok, warning or error.

    `action` says what to call, None if there is nothing to do.
    """

    component: str
    status: str
    detail: str
    action: str | None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue: its settings, the age of its last tick, and what no tick covers yet (`ev_new`)."""

    queue_name: str
    queue_ntables: int
    queue_cur_table: int
    queue_rotation_period: timedelta
    queue_switch_time: datetime
    queue_external_ticker: bool
    queue_ticker_paused: bool
    queue_ticker_max_count: int
    queue_ticker_max_lag: timedelta
    queue_ticker_idle_period: timedelta
    ticker_lag: timedelta | None
    ev_per_sec: float | None
    ev_new: int | None
    last_tick_id: int | None


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """One subscription; `lag` is the age of what it has settled, `pending_events` an estimate."""

    queue_name: str
    consumer_name: str
    lag: timedelta | None
    last_seen: timedelta | None
    last_tick: int | None
    current_batch: int | None
    next_tick: int | None
    pending_events: int | None


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A message that one consumer could not handle, why and since when; `id` is for dlq_replay."""

    id: int
    queue_name: str
    consumer_name: str
    dead_since: datetime
    reason: str | None
    msg_id: int
    type: str
    payload: Any
    retry_count: int | None
    created_at: datetime
    extra1: str | None
    extra2: str | None
    extra3: str | None
    extra4: str | None
    key: str | None
    headers: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What dlq_replay_all did; `first_error` is None if nothing failed."""

    replayed: int
    failed: int
    first_error: str | None
