"""Latency of procrastinate: a default worker, and a task deferred by the sync connector."""

from __future__ import annotations

import asyncio
import importlib

from bench.workers.latency import Recorder, main, send_times

procrastinate = importlib.import_module("procrastinate")  # it is in no environment of ours


def install() -> None:
    with procrastinate.App(connector=procrastinate.SyncPsycopgConnector()).open() as app:
        app.schema_manager.apply_schema()


def consume(count: int, _name: str) -> None:
    recorder = Recorder(count)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())

    async def measure(sent: float) -> None:
        recorder.record(sent)

    app.task(name="measure")(measure)

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async()

    asyncio.run(work())


def produce(count: int, rate: float) -> None:
    with procrastinate.App(connector=procrastinate.SyncPsycopgConnector()).open() as app:
        task = app.configure_task("measure", allow_unknown=True)
        for sent in send_times(count, rate):
            task.defer(sent=sent)


if __name__ == "__main__":
    main(install, consume, produce)
