"""Half messages and how they end."""

from rocketmq import TransactionChecker, TransactionResolution

from scenarios.context import LONG_INVISIBLE, ack, await_that, body, equal, receive


class Checker(TransactionChecker):
    """Answers by the body of the message; what it does not know it leaves open."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.asked = []

    def check(self, message):
        self.asked.append(body(message))
        return self.answers.get(body(message), TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)


def half(c, producer, text):
    transaction = producer.begin_transaction()
    producer.send(c.message(text), transaction)
    return transaction


def only(c, want):
    """Takes the one message that is there, which must have that body."""
    consumer = c.simple_consumer()
    got = receive(consumer, 1)
    equal(want, body(got[0]))
    ack(consumer, got)


def commit(c):
    transaction = half(c, c.producer(Checker()), "committed")
    equal([], c.simple_consumer().receive(16, LONG_INVISIBLE) or [])
    transaction.commit()
    only(c, "committed")


def rollback(c):
    producer = c.producer(Checker())
    half(c, producer, "rolled back").rollback()
    half(c, producer, "committed").commit()
    only(c, "committed")


def check(c):
    checker = Checker({"left, bad": TransactionResolution.ROLLBACK, "left, good": TransactionResolution.COMMIT})
    producer = c.producer(checker)
    half(c, producer, "left, bad")
    half(c, producer, "left, good")
    only(c, "left, good")
    await_that("both are asked about", lambda: "left, bad" in checker.asked)


SCENARIOS = {
    "transaction-commit": commit,
    "transaction-rollback": rollback,
    "transaction-check": check,
}
