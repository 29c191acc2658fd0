"""A child of a benchmark that holds no model: answers the protocol with made-up numbers.

    python bench_arm.py NAME LOG BEHAVIOUR

NAME is written to LOG with each command. As the program that ``LARQL_BENCH_PYTHON`` names it is
started with other arguments, and then reads the three from ``FAKE_ARM``. It is run by path and
imports nothing but the standard library.
"""

import json
import os
import sys
import time

TOKENS = tuple(range(1000, 2000))


def main() -> None:
    given = os.environ["FAKE_ARM"].split("|") if "FAKE_ARM" in os.environ else sys.argv[1:]
    name, log, behaviour = given
    print("a line of no interest", file=sys.stderr)

    def note(text: str) -> None:
        with open(log, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(f"{name} {text}\n")

    def say(document: object) -> None:
        print(json.dumps(document), flush=True)

    note(f"started {os.getpid()}")
    if behaviour == "missing":
        say({"error": {"kind": "ModuleNotFoundError", "message": "No m", "missing_module": "m"}})
        return
    if behaviour == "refuse":
        say({"error": {"kind": "UnsupportedRefusal", "message": "no\n kernel"}})
        return
    if behaviour == "fail":
        say({"error": {"kind": "KeyError", "message": "'x'", "missing_module": None}})
        return
    if behaviour == "die":
        print("dying of thirst", file=sys.stderr)
        sys.exit(3)
    if behaviour == "babble":
        print("hello", flush=True)
        return
    say({"ready": {"load_seconds": 0.25, "facts": {"state": [], "name": name}}})
    for line in sys.stdin:
        command = json.loads(line)
        do = command["do"]
        note(f"{do} {len(command.get('ids', []))} {command.get('steps')}")
        if behaviour == "hang":
            time.sleep(600)
        if behaviour == "die later":
            sys.exit(4)
        if behaviour == "fail later":
            say({"error": {"kind": "RuntimeError", "message": "too hot", "missing_module": None}})
        elif behaviour == "nonsense":
            say({"seconds": "soon", "tokens": "none", "bytes": -1, "resident_bytes": True})
        elif do == "decode":
            say({"seconds": 0.5 * command["steps"], "tokens": TOKENS[: command["steps"]]})
        elif do == "prefill":
            say({"seconds": 2.0, "token": 7})
        elif do == "read":
            say({"seconds": 0.5, "bytes": 10**9})
        else:
            say({"resident_bytes": 3_000_000, "peak_bytes": 4_000_000, "file_bytes": 1_000_000})


if __name__ == "__main__":
    main()
