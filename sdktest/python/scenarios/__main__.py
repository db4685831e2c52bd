"""Runs scenarios: python -m scenarios ENDPOINT SCENARIO...

Prints a line of JSON for each, and asks the runner in the same way to end and
start the server.
"""

import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from scenarios import basics, consuming, endings, lines, ordering, timing, transactions
from scenarios.context import Context, SDKFault

# Scenarios mostly wait, but each has clients with threads of their own.
AT_ONCE = 6

ALL = {
    **basics.SCENARIOS,
    **consuming.SCENARIOS,
    **ordering.SCENARIOS,
    **timing.SCENARIOS,
    **transactions.SCENARIOS,
    **endings.SCENARIOS,
}


def run(endpoint, name):
    try:
        with Context(endpoint, name) as c:
            ALL[name](c)
        lines.result(name, "pass")
    except SDKFault as err:
        lines.result(name, "fault", str(err))
    except Exception as err:
        print(name, traceback.format_exc(), file=sys.stderr, flush=True)
        lines.result(name, "fail", f"{type(err).__name__}: {err}")


def main():
    endpoint, names = sys.argv[1], sys.argv[2:]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name in names:
            pool.submit(run, endpoint, name)
    os._exit(0)  # some threads of the SDK outlive its clients


if __name__ == "__main__":
    main()
