"""Latency of pgque: a default Consumer and PgqueClient.send."""

from __future__ import annotations

import pgque
from bench.workers.latency import Recorder, main, send_times
from pgque import schema

QUEUE = "latency"


def install() -> None:
    with pgque.connect(autocommit=True) as client:
        schema.install(client.conn)
        client.create_queue(QUEUE)
        for number in range(10):
            client.subscribe(QUEUE, str(number))


def consume(count: int, name: str) -> None:
    recorder = Recorder(count)
    consumer = pgque.Consumer(queue=QUEUE, name=name)

    @consumer.on("*")
    def handle(message: pgque.Message) -> None:
        recorder.record(message.payload)

    consumer.start()


def produce(count: int, rate: float) -> None:
    with pgque.connect(autocommit=True) as client:
        for sent in send_times(count, rate):
            client.send(QUEUE, sent)


if __name__ == "__main__":
    main(install, consume, produce)
