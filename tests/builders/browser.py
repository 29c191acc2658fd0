"""A headless browser, spoken to over two pipes in its debugging protocol: JSON and a zero byte."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SECONDS = 90.0
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1300,2600",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab. Every message that the browser sends without being asked is kept in ``events``."""

    def __init__(self, read: int, write: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._read, self._write = read, write
        self._rest, self._number = b"", 0
        self._until = time.monotonic() + SECONDS
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, object] = {
            "id": self._number, "method": method, "params": parameters,
        }  # fmt: skip
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], self._until - time.monotonic())
            assert ready, f"the browser did not answer in {SECONDS} s"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, expression: str) -> Any:
        """Evaluate an expression of the page's language in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str, holds: Callable[[Any], bool] = bool) -> Any:
        """Ask until the answer is as it should be."""
        while True:
            value = self.ask(expression)
            if holds(value):
                return value
            assert time.monotonic() < self._until, f"{expression} is still {value!r}"
            time.sleep(0.05)

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("document.readyState", lambda state: state == "complete")
        self.wait_for("location.protocol", lambda protocol: protocol == "file:")

    def mouse(self, kind: str, x: float, y: float) -> None:
        button: Mapping[str, object] = {}
        if kind != "mouseMoved":
            button = {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def of(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for, pictures within the page left out."""
        urls = [str(found["request"]["url"]) for found in self.of("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def complaints(self) -> list[str]:
        """Return errors of scripts, and what the page's policy forbade."""
        thrown = [str(found["exceptionDetails"]) for found in self.of("Runtime.exceptionThrown")]
        logged = [found["entry"] for found in self.of("Log.entryAdded")]
        return thrown + [str(entry) for entry in logged if entry["level"] == "error"]


@contextmanager
def browser(program: Path, directory: Path) -> Iterator[Browser]:
    """Run a browser with a profile of its own, and end it with all its processes."""
    pipes = [os.pipe(), os.pipe()]
    # Above 4, so that making 3 and 4 of them overwrites neither.
    ours = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for pipe in pipes for fd in pipe]
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
    their_read, our_write, our_read, their_write = ours
    log = directory / "browser.log"
    child = os.posix_spawn(
        program,
        [str(program), *OPTIONS, f"--user-data-dir={directory / 'profile'}"],
        {**os.environ, "HOME": str(directory)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, their_read, 3),
            (os.POSIX_SPAWN_DUP2, their_write, 4),
        ],
        setpgroup=0,
    )
    os.close(their_read)
    os.close(their_write)
    try:
        yield Browser(our_read, our_write)
    except (AssertionError, OSError) as error:
        tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        raise AssertionError(f"{error}\n{tail}") from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(our_read)
        os.close(our_write)
