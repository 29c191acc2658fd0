"""The entry point: runs a command and turns whatever ends it into an exit status and one line.

Exit status 0: done, and what was checked holds. 1: a check found something. 2: refused, wrong
usage, or a defect of larql. 130: interrupted. 141: the reader of a pipe went away. 143:
terminated.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from larql.cli import render
from larql.cli.output import Output
from larql.errors import LarqlError, OutputError, PlatformError, Refusal

__all__ = ["main"]

INTERRUPTED = 130
TERMINATED = 143
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
        Exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    output = Output()
    for stream in (sys.stdout, sys.stderr):
        _never_fail_to_encode(stream)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning_on(output)
        # Only the main thread may; elsewhere a caller has its own way of ending.
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, _end_at_once)
        try:
            status = _run(arguments, output)
            _flush()
        except BaseException as error:  # noqa: BLE001 -- the one place where any error ends
            status = _end(error, arguments, output)
    return status


class _TerminatedError(BaseException):
    """The process was asked to end; it passes through clean-up as an interrupt does."""


def _end_at_once(signum: int, frame: object) -> None:
    raise _TerminatedError


def _run(arguments: list[str], output: Output) -> int:
    import typer

    if sys.platform == "win32":
        raise PlatformError("larql runs on Linux; on Windows, use it inside WSL")
    from larql.cli.app import PROGRAM, root

    command = root()
    try:
        with command.make_context(PROGRAM, arguments, obj=output) as context:
            command.invoke(context)
    except typer.Exit as error:
        return error.exit_code
    return 0


def _end(error: BaseException, arguments: list[str], output: Output) -> int:
    """Report what ended the command; reporting can itself meet a closed pipe or a full disk."""
    try:
        status = _report(error, arguments, output)
    except BrokenPipeError:
        status = PIPE_CLOSED
    except (OSError, OutputError):
        status = 2
    # What is still buffered and cannot be written, the interpreter would try again at exit.
    _discard_unwritable(sys.stdout, 1)
    _discard_unwritable(sys.stderr, 2)
    return status


def _report(error: BaseException, arguments: list[str], output: Output) -> int:
    import typer

    # Typer brings its own copy of click or the original, by version; it exports this leaf only.
    command_line_error = typer.BadParameter.__mro__[2]
    usage_error = typer.BadParameter.__mro__[1]

    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        return PIPE_CLOSED
    # An error can end the parsing before it reaches the flags.
    output.json = output.json or _asks_for(arguments, "--json")
    output.debug = output.debug or _asks_for(arguments, "--debug")
    hint: str | None = None
    status = 2
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        kind, message, status = "Interrupted", "interrupted", INTERRUPTED
    elif isinstance(error, _TerminatedError):
        kind, message, status = "Terminated", "terminated", TERMINATED
    elif isinstance(error, LarqlError):
        kind, message, status = type(error).__name__, str(error), error.exit_code
    elif isinstance(error, command_line_error):
        kind, message = "UsageError", error.format_message()  # type: ignore[attr-defined]
        if isinstance(error, usage_error):
            context = error.ctx  # type: ignore[attr-defined]
            hint = f"try '{context.command_path if context else 'larql'} --help'"
    elif isinstance(error, MemoryError):
        kind, message = "MemoryError", "out of memory; close other programs or use a smaller model"
    elif isinstance(error, OSError):
        kind, message = "OSError", _os_error_text(error)
    else:
        kind = "Bug"
        message = (
            f"this is a defect of larql, please report it: {type(error).__name__}: {error} "
            "(--debug shows where)"
        )
    message = " ".join(message.split())
    if output.debug:
        traceback.print_exception(error, file=sys.stderr)
    advice = "" if hint is None else f"; {hint}"
    print(f"larql: error: {render.printable(message.rstrip('.') + advice)}", file=sys.stderr)
    if output.json and not output.answered:
        body: dict[str, object] = {"kind": kind, "message": message}
        if isinstance(error, Refusal):
            body["refusal"] = error.kind
        render.document(output, {"error": body})
    return status


def _asks_for(arguments: list[str], flag: str) -> bool:
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return flag in before


def _os_error_text(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(names)}: {reason}" if names else reason


def _show_warning_on(output: Output) -> Callable[..., None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        render.warning(output, " ".join(str(message).split()))

    return show


def _never_fail_to_encode(stream: object) -> None:
    """Let file names that are not text, or a narrow locale, print as escapes instead of failing."""
    import io

    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


def _discard_unwritable(stream: TextIO | None, descriptor: int) -> None:
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _reader_is_gone() -> bool:
    """Tell a closed standard pipe from a connection that broke during a download."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))
