"""What a scenario has: a topic and a group of its own, and clients that end with it."""

import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

from scenarios import lines

LONG_INVISIBLE = 600  # seconds
# How long anything that is waited for may take. It says nothing about speed.
PATIENCE = 60
# Of a call. The SDK's own three seconds can be short on a machine that has much to do.
TIMEOUT = 15
AWAIT = 2
PAUSE = 0.05


class SDKFault(Exception):
    """The SDK was seen to do what it should not."""


class Listener(MessageListener):
    """A listener that is a function: what it returns says whether it succeeded."""

    def __init__(self, consume):
        self._consume = consume

    def consume(self, message):
        return ConsumeResult.FAILURE if self._consume(message) is False else ConsumeResult.SUCCESS


class Context:
    """Topic and group are called as the scenario is."""

    def __init__(self, endpoint, name):
        self.endpoint = endpoint
        self.topic = self.group = name
        self._clients = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        while self._clients:
            self._clients.pop().shutdown()

    def configuration(self, access_key="", secret="", endpoint=None):
        return ClientConfiguration(endpoint or self.endpoint, Credentials(access_key, secret), request_timeout=TIMEOUT)

    def start(self, client):
        """Starts a client that ends with the scenario."""
        client.startup()
        self._clients.append(client)
        return client

    def producer(self, checker=None, configuration=None, tls=False):
        return self.start(Producer(configuration or self.configuration(), [self.topic], checker, tls))

    def simple_consumer(self, group=None, topic=None, expression=None, configuration=None, tls=False):
        return self.start(
            SimpleConsumer(
                configuration or self.configuration(),
                group or self.group,
                {topic or self.topic: expression or FilterExpression()},
                AWAIT,
                tls_enable=tls,
            )
        )

    def push_consumer(self, consume, expression=None):
        """The message was consumed unless consume returns False."""
        subscription = {self.topic: expression or FilterExpression()}
        return self.start(PushConsumer(self.configuration(), self.group, Listener(consume), subscription))

    def message(self, body, **attributes):
        """A message of the topic. Attributes are those of the SDK's message, and properties."""
        message = Message()
        message.topic = self.topic
        message.body = body.encode() if isinstance(body, str) else body
        for key, value in attributes.pop("properties", {}).items():
            message.add_property(key, value)
        for name, value in attributes.items():
            setattr(message, name, value)
        return message

    def ask(self, what):
        """Asks the runner to kill, stop or start the server, or to wait until all is settled."""
        lines.ask(self.topic, what)


def body(message):
    return message.body.decode()


def receive(consumer, n):
    """Receives until n messages are there. Nothing is acknowledged."""
    got = []

    def enough():
        got.extend(consumer.receive(16, LONG_INVISIBLE) or [])
        return len(got) >= n

    await_that(f"{n} messages", enough)
    equal(n, len(got))
    return got


def ack(consumer, messages):
    for message in messages:
        consumer.ack(message)


def await_that(what, holds):
    """Waits until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        check(time.monotonic() < end, f"{what}: not within {PATIENCE} s")
        time.sleep(PAUSE)


def check(holds, otherwise):
    if not holds:
        raise AssertionError(otherwise)


def equal(want, got):
    check(want == got, f"got {got!r} instead of {want!r}")


def refused(what, work):
    """Returns the text of what the work raises, which must come soon and say something."""
    began = time.monotonic()
    try:
        work()
    except Exception as err:
        check(time.monotonic() - began < PATIENCE, f"{what} was refused, but late")
        check(str(err).strip(), f"{what} was refused without a word")
        return str(err)
    raise AssertionError(f"{what} was taken")
