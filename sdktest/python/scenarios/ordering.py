"""Message groups, priorities and lite topics: what comes in an order."""

from collections import defaultdict

from rocketmq import LitePushConsumer

from scenarios.context import Listener, SDKFault, ack, await_that, body, equal, receive

GROUPS = ["ann", "ben", "cat"]
EACH = 8


def consume(c, fails):
    """Works through messages in their groups; a message for which fails holds fails."""
    done = defaultdict(list)

    def work(message):
        if fails(message):
            return False
        done[message.message_group].append(body(message))
        return True

    c.push_consumer(work)
    return done


def send_groups(c):
    producer = c.producer()
    for i in range(EACH):
        for group in GROUPS:
            producer.send(c.message(f"{group} {i}", message_group=group))


def in_order(done, without=None):
    want = {group: [f"{group} {i}" for i in range(EACH) if f"{group} {i}" != without] for group in GROUPS}
    expected = sum(map(len, want.values()))
    await_that("everything consumed", lambda: sum(map(len, list(done.values()))) >= expected)
    equal(want, dict(done))


def fifo_order(c):
    failed = set()

    def fails(message):
        text = body(message)
        if not text.endswith("3") or text in failed:
            return False
        failed.add(text)
        return True

    send_groups(c)
    in_order(consume(c, fails))
    equal(len(GROUPS), len(failed))


def fifo_dead_letter(c):
    send_groups(c)
    in_order(consume(c, lambda message: body(message) == "ben 2"), "ben 2")
    readers = c.simple_consumer(c.group + "-readers", "%DLQ%" + c.group)
    letters = receive(readers, 1)
    equal("ben 2", body(letters[0]))
    ack(readers, letters)


def priority(c):
    producer = c.producer()
    priorities = [0, 2, 1, 9, 3]
    for p in priorities:
        producer.send(c.message(f"priority {p}", priority=p))
    consumer = c.simple_consumer()
    got = receive(consumer, len(priorities))
    equal([f"priority {p}" for p in sorted(priorities, reverse=True)], [body(m) for m in got])
    equal(9, got[0].priority)
    ack(consumer, got)


def lite(c):
    got = []
    listener = Listener(lambda message: got.append(f"{message.lite_topic} {body(message)}"))
    consumer = c.start(LitePushConsumer(c.configuration(), c.group, c.topic, listener))
    producer = c.producer()
    consumer.subscribe_lite("m")
    for i in range(EACH):
        for name in ["other", "m"]:
            producer.send(c.message(str(i), lite_topic=name))
    await_that("everything consumed", lambda: len(got) >= EACH)
    equal([f"m {i}" for i in range(EACH)], got)
    consumer.unsubscribe_lite("m")

    # A name of more than one letter should be one lite topic, not one for each letter.
    got.clear()
    consumer.subscribe_lite("xyz")
    for name in ["xyz", "x", "y", "z"]:
        producer.send(c.message("sent", lite_topic=name))
    await_that("something consumed", lambda: "xyz sent" in got or len(got) >= 3)
    if sorted(got) == ["x sent", "y sent", "z sent"]:
        raise SDKFault("subscribe_lite subscribes to the letters of the name")
    equal(["xyz sent"], got)


SCENARIOS = {
    "fifo-order": fifo_order,
    "fifo-dead-letter": fifo_dead_letter,
    "priority": priority,
    "lite": lite,
}
