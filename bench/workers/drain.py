"""Read a backlog to its end: `python -m bench.workers.drain QUEUE CONSUMER MAX_MESSAGES`."""

from __future__ import annotations

import json
import resource
import sys
import time

import pgque

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def main(queue: str, consumer: str, max_messages: int) -> None:
    """Print the number of messages, the peak memory, and the seconds that each piece took."""
    count, seconds = 0, []
    with pgque.connect(autocommit=True) as client:
        started = time.perf_counter()
        while messages := client.receive(queue, consumer, max_messages):
            client.ack(messages[0].batch_id)
            count += len(messages)
            ended = time.perf_counter()
            seconds.append(ended - started)
            started = ended
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
    print(json.dumps({"messages": count, "peak_bytes": peak, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
