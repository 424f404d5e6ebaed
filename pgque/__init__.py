"""PgQue: a message queue inside PostgreSQL, and this, its Python driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgque._backoff import Backoff
from pgque.client import PgqueClient, connect
from pgque.consumer import Consumer
from pgque.errors import (
    PgqueBatchNotFound,
    PgqueConnectionError,
    PgqueConsumerFellBehind,
    PgqueConsumerNotFound,
    PgqueCooperativeMisuse,
    PgqueDeadLetterNotFound,
    PgqueError,
    PgqueInvalidArgument,
    PgqueInvalidConfig,
    PgqueInvalidName,
    PgqueLeaseLost,
    PgqueMessageNotInBatch,
    PgqueNotInstalled,
    PgquePayloadError,
    PgqueQueueDisabled,
    PgqueQueueInUse,
    PgqueQueueNotFound,
    PgqueReadOnlyServer,
    PgqueSchedulerMissing,
    PgqueSchemaVersion,
    PgqueWrongIsolationLevel,
)
from pgque.messages import DeadLetter, Event, Message, RawJson, Retry
from pgque.records import ComponentStatus, ConsumerInfo, DeadLetterRecord, QueueInfo, ReplayResult

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "Backoff",
    "ComponentStatus",
    "Consumer",
    "ConsumerInfo",
    "DeadLetter",
    "DeadLetterRecord",
    "Event",
    "Message",
    "PgqueBatchNotFound",
    "PgqueClient",
    "PgqueConnectionError",
    "PgqueConsumerFellBehind",
    "PgqueConsumerNotFound",
    "PgqueCooperativeMisuse",
    "PgqueDeadLetterNotFound",
    "PgqueError",
    "PgqueInvalidArgument",
    "PgqueInvalidConfig",
    "PgqueInvalidName",
    "PgqueLeaseLost",
    "PgqueMessageNotInBatch",
    "PgqueNotInstalled",
    "PgquePayloadError",
    "PgqueQueueDisabled",
    "PgqueQueueInUse",
    "PgqueQueueNotFound",
    "PgqueReadOnlyServer",
    "PgqueSchedulerMissing",
    "PgqueSchemaVersion",
    "PgqueWrongIsolationLevel",
    "QueueInfo",
    "RawJson",
    "ReplayResult",
    "Retry",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("pgque-driver")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
