"""Delayed messages."""

import time

from scenarios.context import LONG_INVISIBLE, ack, body, check, equal, receive, refused

DELAY = 3


def delay(c):
    consumer = c.simple_consumer()
    due = int(time.time()) + DELAY
    c.producer().send(c.message("later", delivery_timestamp=due))
    got = receive(consumer, 1)
    check(time.time() >= due, "it came early")
    equal(due * 1000, got[0].delivery_timestamp)  # sent in seconds, received in milliseconds
    ack(consumer, got)


def recall(c):
    producer = c.producer()
    due = int(time.time()) + DELAY
    recalled = producer.send(c.message("recalled", delivery_timestamp=due))
    producer.send(c.message("comes", delivery_timestamp=due + 1))
    equal(recalled.message_id, producer.recall_message(c.topic, recalled.recall_handle))
    refused("a handle that is none", lambda: producer.recall_message(c.topic, "nonsense"))
    consumer = c.simple_consumer()
    got = receive(consumer, 1)
    equal("comes", body(got[0]))
    ack(consumer, got)
    equal([], consumer.receive(16, LONG_INVISIBLE) or [])


SCENARIOS = {"delay": delay, "recall": recall}
