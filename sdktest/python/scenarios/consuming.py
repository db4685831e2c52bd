"""Consumers of both kinds, filters, failures and leases."""

import time

from rocketmq import FilterExpression
from rocketmq.grpc_protocol import FilterType

from scenarios.context import LONG_INVISIBLE, ack, await_that, body, check, equal, receive

MESSAGES = 100
# Longer than a lease of the server under test, which the server renews.
LONG_WORK = 14


def send(c, n):
    producer = c.producer()
    sent = [f"message {i}" for i in range(n)]
    for text in sent:
        producer.send(c.message(text))
    return sent


def simple(c):
    sent = send(c, MESSAGES)
    consumer = c.simple_consumer()
    got = receive(consumer, len(sent))
    equal(sorted(sent), sorted(map(body, got)))
    ack(consumer, got)
    equal([], consumer.receive(16, LONG_INVISIBLE) or [])


def push(c):
    got = []
    c.push_consumer(lambda message: got.append(body(message)))
    sent = send(c, MESSAGES)
    await_that("every message", lambda: len(got) >= len(sent))
    equal(sorted(sent), sorted(got))


def filtered(expression):
    """The filter wants what is red or green; size goes with the color."""

    def run(c):
        producer = c.producer()
        for color in ["red", "blue", "green", "redgreen", "red"]:
            producer.send(c.message(color, tag=color, properties={"color": color, "size": "7"}))
        producer.send(c.message("none", properties={"size": "7"}))
        got = []
        c.push_consumer(lambda message: got.append(body(message)), expression)
        await_that("what was asked for", lambda: len(got) >= 3)
        equal(["green", "red", "red"], sorted(got))

    return run


def retry(c):
    attempts, times = [], []

    def consume(message):
        times.append(time.monotonic())
        attempts.append(message.delivery_attempt)
        return message.delivery_attempt >= 3

    c.push_consumer(consume)
    c.producer().send(c.message("third time lucky"))
    await_that("three attempts", lambda: len(attempts) >= 3)
    equal([1, 2, 3], attempts)
    check(times[2] - times[0] > 1.5, "the retries came without their delays")


def change_invisible(c):
    send(c, 2)
    consumer = c.simple_consumer()
    given, kept = receive(consumer, 2)
    consumer.change_invisible_duration(kept, LONG_INVISIBLE)
    consumer.change_invisible_duration(given, 1)
    again = receive(consumer, 1)
    equal(body(given), body(again[0]))
    equal(2, again[0].delivery_attempt)
    ack(consumer, again)
    consumer.ack(kept)  # with the handle that the change has returned


def dead_letter(c):
    deliveries = []

    def consume(message):
        deliveries.append(message)
        return False

    c.push_consumer(consume)
    receipt = c.producer().send(c.message("poison"))
    readers = c.simple_consumer(c.group + "-readers", "%DLQ%" + c.group)
    letters = receive(readers, 1)
    equal("poison", body(letters[0]))
    equal(receipt.message_id, letters[0].message_id)
    equal(2, len(deliveries))
    ack(readers, letters)


def auto_renewal(c):
    started, finished = [], []

    def consume(message):
        started.append(message)
        time.sleep(LONG_WORK)
        finished.append(message)

    c.push_consumer(consume)
    c.producer().send(c.message("long work"))
    await_that("the work is done", lambda: finished)
    equal(1, len(started))


SCENARIOS = {
    "simple-consume": simple,
    "push-consume": push,
    "tag-filter": filtered(FilterExpression("red || green")),
    "sql-filter": filtered(FilterExpression("size > 5 AND color IN ('red', 'green')", FilterType.SQL)),
    "retry": retry,
    "change-invisible": change_invisible,
    "dead-letter": dead_letter,
    "auto-renewal": auto_renewal,
}
