"""The conversation with the runner: JSON in a line, and a line of text for an answer."""

import json
import sys
import threading

_printing = threading.Lock()
_asking = threading.Lock()


def result(scenario, outcome, reason=""):
    """Says how a scenario went."""
    _print(scenario=scenario, result=outcome, reason=reason)


def ask(scenario, what):
    """Asks for something about the server, and returns once it is done."""
    with _asking:
        _print(scenario=scenario, ask=what)
        answer = sys.stdin.readline().strip()
    if answer != "ok":
        raise RuntimeError(f"{what}: {answer}")


def _print(**fields):
    with _printing:
        print(json.dumps(fields), flush=True)
