"""Starting, sending, and what is refused."""

import time

from rocketmq import FilterExpression
from rocketmq.grpc_protocol import FilterType

from scenarios.context import LONG_INVISIBLE, ack, body, check, equal, receive, refused

# The largest body that the server takes, unless it is told otherwise.
MAX_BODY = 4 << 20
STOP_LIMIT = 30


def start(c):
    c.producer()
    c.simple_consumer()
    c.push_consumer(lambda message: True)
    began = time.monotonic()
    c.close()
    check(time.monotonic() - began < STOP_LIMIT, "the clients took long to stop")


def round_trip(c, configuration=None, tls=False):
    consumer = c.simple_consumer(configuration=configuration, tls=tls)
    c.producer(configuration=configuration, tls=tls).send(c.message("there and back"))
    got = receive(consumer, 1)
    equal("there and back", body(got[0]))
    ack(consumer, got)


def tls(c):
    # The server's own certificate names localhost.
    endpoint = "localhost:" + c.endpoint.rpartition(":")[2]
    round_trip(c, c.configuration(endpoint=endpoint), tls=True)


def credentials(c):
    round_trip(c, c.configuration("key", "secret"))


def send_normal(c):
    consumer = c.simple_consumer()
    message = c.message("as it was sent", tag="tag", properties={"color": "green", "size": "7"})
    message.keys = "one"
    message.keys = "two"  # adds to them
    receipt = c.producer().send(message)
    got = receive(consumer, 1)
    equal("as it was sent", body(got[0]))
    equal(receipt.message_id, got[0].message_id)
    equal("tag", got[0].tag)
    equal(["one", "two"], sorted(got[0].keys))
    equal({"color": "green", "size": "7"}, got[0].properties)
    equal(c.topic, got[0].topic)
    equal(1, got[0].delivery_attempt)
    check(got[0].born_host and got[0].born_timestamp, "no born host or time")
    check(not got[0].corrupted, "the checksum does not fit")
    ack(consumer, got)


def send_fifo(c):
    consumer = c.simple_consumer()
    c.producer().send(c.message("ordered", message_group="customer"))
    got = receive(consumer, 1)
    equal("customer", got[0].message_group)
    ack(consumer, got)


def oversized(c):
    producer = c.producer()
    refused("a body above the limit", lambda: producer.send(c.message(b"x" * (MAX_BODY + 1))))
    consumer = c.simple_consumer()
    producer.send(c.message(b"x" * MAX_BODY))
    got = receive(consumer, 1)
    equal(MAX_BODY, len(got[0].body))
    ack(consumer, got)


def bad_input(c):
    producer = c.producer()
    missing = c.message("lost", topic="nowhere")
    text = refused("a send to a topic that does not exist", lambda: producer.send(missing))
    check("nowhere" in text, f"the topic is not named: {text}")
    refused("an empty body", lambda: producer.send(c.message("")))
    refused("a tag with a bar", lambda: producer.send(c.message("body", tag="a|b")))
    wrong = FilterExpression("color = = 'red'", FilterType.SQL)
    refused("a filter that is no SQL", lambda: c.simple_consumer(expression=wrong).receive(1, LONG_INVISIBLE))
    producer.send(c.message("the producer goes on"))


SCENARIOS = {
    "start": start,
    "cleartext": round_trip,
    "tls": tls,
    "credentials": credentials,
    "send-normal": send_normal,
    "send-fifo": send_fifo,
    "oversized": oversized,
    "bad-input": bad_input,
}
