"""Latency of PgQueuer: a default PgQueuer on an asyncpg connection, as in its documentation."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from bench.workers.latency import Recorder, main, send_times

asyncpg = importlib.import_module("asyncpg")  # these are in no environment of ours
pgqueuer = importlib.import_module("pgqueuer")


async def _connect() -> Any:
    return pgqueuer.AsyncpgDriver(await asyncpg.connect())


def install() -> None:
    async def run() -> None:
        await pgqueuer.Queries(await _connect()).install()

    asyncio.run(run())


def consume(count: int, _name: str) -> None:
    recorder = Recorder(count)

    async def measure(job: Any) -> None:
        recorder.record(float(job.payload))

    async def run() -> None:
        worker = pgqueuer.PgQueuer(await _connect())
        worker.entrypoint("measure")(measure)
        await worker.run()

    asyncio.run(run())


def produce(count: int, rate: float) -> None:
    async def run() -> None:
        queries = pgqueuer.Queries(await _connect())
        for sent in send_times(count, rate):
            await queries.enqueue("measure", str(sent).encode())

    asyncio.run(run())


if __name__ == "__main__":
    main(install, consume, produce)
