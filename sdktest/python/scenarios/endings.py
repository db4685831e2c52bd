"""The server ends and comes back while clients run."""

import threading
import time

from scenarios.context import await_that, body

FLOW = 50
PAUSE = 0.02
# The shortest there is: what was received when the server ended comes again after it.
INVISIBLE = 10


def run(end):
    def scenario(c):
        sent, pushed, polled, failures = set(), set(), set(), []
        done, stopped = threading.Event(), threading.Event()
        c.push_consumer(lambda message: pushed.add(body(message)))
        consumer = c.simple_consumer(c.group + "-2")
        producer = c.producer()
        sender = threading.Thread(target=send, args=(c, producer, done, sent, failures), daemon=True)
        poller = threading.Thread(target=poll, args=(consumer, stopped, polled), daemon=True)
        sender.start()
        poller.start()
        try:
            await_that("messages flow", lambda: min(len(sent), len(pushed), len(polled)) >= FLOW)
            before = len(failures)
            c.ask(end)
            await_that("sends fail while the server is down", lambda: len(failures) > before)
            c.ask("start")
            acknowledged = len(sent)
            await_that("sends go on", lambda: len(sent) >= acknowledged + FLOW)
            done.set()
            sender.join()
            await_that("the push consumer has all", lambda: sent <= pushed)
            await_that("the simple consumer has all", lambda: sent <= polled)
            c.ask("settled")  # also what was sent or acknowledged without an answer
        finally:
            done.set()
            sender.join()
            stopped.set()
            poller.join()

    return scenario


def send(c, producer, done, sent, failures):
    i = 0
    while not done.wait(PAUSE):
        text = f"message {i}"
        i += 1
        try:
            producer.send(c.message(text))
            sent.add(text)
        except Exception as err:
            failures.append(err)


def poll(consumer, stopped, polled):
    while not stopped.is_set():
        try:
            for message in consumer.receive(16, INVISIBLE) or []:
                polled.add(body(message))  # an ack without an answer may be one all the same
                consumer.ack(message)
        except Exception:
            time.sleep(PAUSE)  # the server is away


SCENARIOS = {"restart": run("kill"), "drain": run("stop")}
