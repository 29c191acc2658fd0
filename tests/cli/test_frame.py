"""The frame around commands: parsing, flags, errors and exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer

from larql import __version__, errors
from larql.cli import app, render
from larql.cli.main import main
from larql.cli.options import Backend, BackendOption, Model, Threads
from larql.cli.output import output_of

Act = Callable[[typer.Context], None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Make ``larql try`` and ``larql group try`` run a given body."""

    def install(act: Act) -> None:
        def body(
            ctx: typer.Context,
            model: Model,
            threads: Threads = None,
            backend: BackendOption = Backend.PRODUCTION,
        ) -> None:
            """Try it."""
            ctx.meta.update(model=model, threads=threads, backend=backend)
            act(ctx)

        module = types.ModuleType("larql_try")
        module.command = body  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "larql_try", module)
        entry = app.Command("Try it.", "larql_try")
        table = {"try": entry, "group": app.Group("Try more.", {"try": entry})}
        monkeypatch.setattr(app, "COMMANDS", table)

    return install


def failing(error: BaseException) -> Act:
    def act(ctx: typer.Context) -> None:
        raise error

    return act


def answering(ctx: typer.Context) -> None:
    output = output_of(ctx)
    if output.json:
        render.document(output, {"quiet": output.quiet, **ctx.meta})
    else:
        render.line(f"{ctx.meta['model']} {ctx.meta['threads']} {ctx.meta['backend'].value}")


def test_without_a_command_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out
    assert main(["cache"]) == 0
    assert "  rm " in capsys.readouterr().out


def test_without_a_command_there_is_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vindex3", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "UsageError"


@pytest.mark.parametrize("arguments", [["--version", "--json"], ["--json", "--version"]])
def test_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {"version": __version__}
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"larql {__version__}\n"


def test_a_misspelt_command_is_met_with_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["extrct", "x"]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "larql: error: No such command 'extrct'; did you mean 'extract'?; try 'larql --help'",
    ]
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "try", "m"],
        ["try", "--json", "m"],
        ["try", "m", "--json"],
        ["group", "--json", "try", "m"],
        ["--json", "group", "try", "m"],
    ],
)
def test_flags_are_taken_before_and_after_the_command(
    arguments: list[str], command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(answering)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {
        "quiet": False,
        "model": "m",
        "threads": None,
        "backend": "production",
    }


def test_what_typer_must_convert_is_converted_and_the_rest_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(
        ctx: typer.Context,
        names: Annotated[list[str] | None, typer.Argument(help="Names.")] = None,
        text: Annotated[str | None, typer.Option(help="Text.")] = None,
        count: Annotated[int | None, typer.Option(help="Count.", min=1)] = None,
        path: Annotated[Path | None, typer.Option(help="Path.")] = None,
        kind: Annotated[Backend | None, typer.Option(help="Kind.")] = None,
    ) -> None:
        """Try it."""
        render.line(repr((names, text, count, path, kind)))

    module = types.ModuleType("larql_try")
    module.command = body  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "larql_try", module)
    monkeypatch.setattr(app, "COMMANDS", {"try": app.Command("Try it.", "larql_try")})
    assert main(["try"]) == 0
    assert capsys.readouterr().out == "(None, None, None, None, None)\n"
    options = ["--text", "\udcff", "--count", "3", "--path", "p", "--kind", "reference"]
    assert main(["try", "a", "b", *options]) == 0
    expected = (["a", "b"], "\udcff", 3, Path("p"), Backend.REFERENCE)
    assert capsys.readouterr().out == f"{expected!r}\n"


def test_a_flag_that_is_the_value_of_an_option_is_not_a_flag(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(answering)
    assert main(["try", "--threads", "3", "--backend", "reference", "--", "--json"]) == 0
    assert capsys.readouterr().out == "--json 3 reference\n"
    assert main(["try", "--bogus", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["try"], "Missing argument 'MODEL'; try"),
        (["try", "m", "--threads", "0"], "--threads"),
        (["try", "m", "--threads", "65"], "--threads"),
        (["try", "m", "--threads", "two"], "--threads"),
        (["try", "m", "--backend", "magic"], "production"),
        (["try", "m", "--bogus"], "--bogus"),
        (["try", "m", "n"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_with_advice(
    arguments: list[str],
    says: str,
    command: Callable[[Act], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(answering)
    assert main([*arguments, "--json"]) == 2
    captured = capsys.readouterr()
    (first,) = captured.err.splitlines()
    assert first.startswith("larql: error: ")
    assert says in first
    error = json.loads(captured.out)["error"]
    assert error["kind"] == "UsageError"
    assert first.startswith(f"larql: error: {error['message'].rstrip('.')}")
    assert "; try 'larql try --help'" in first or "expected" in first


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.SourceError("a.gguf: cut short"), 2, "SourceError"),
        (errors.CheckFailed("one file differs"), 1, "CheckFailed"),
        (errors.UsageError("--tokens and --prompt: give one"), 2, "UsageError"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (typer.Abort(), 130, "Interrupted"),
        (MemoryError(), 2, "MemoryError"),
        (OSError(28, "No space left on device", "out/index.json"), 2, "OSError"),
        (FileNotFoundError(2, "No such file or directory", b"b"), 2, "OSError"),
        (ZeroDivisionError("division by zero"), 2, "Bug"),
        (AssertionError(), 2, "Bug"),
    ],
)
def test_an_error_is_one_line_and_a_document(
    error: BaseException,
    status: int,
    kind: str,
    command: Callable[[Act], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(failing(error))
    assert main(["try", "m"]) == status
    plain = capsys.readouterr()
    assert plain.out == ""
    assert plain.err.startswith("larql: error: ")
    assert plain.err.count("\n") == 1
    assert main(["try", "m", "--json", "--quiet"]) == status
    captured = capsys.readouterr()
    assert captured.err == plain.err
    document = json.loads(captured.out)
    assert document["error"]["kind"] == kind
    assert f"larql: error: {document['error']['message']}\n" == plain.err


def test_a_full_disk_names_the_file(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(failing(OSError(28, "No space left on device", "out/index.json")))
    main(["try", "m"])
    assert capsys.readouterr().err == ("larql: error: out/index.json: No space left on device\n")


def test_a_defect_says_so(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(failing(KeyError("blk.0")))
    main(["try", "m"])
    assert "defect of larql" in (text := capsys.readouterr().err)
    assert "KeyError: 'blk.0'" in text


def test_a_refusal_tells_who_can_act(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(failing(errors.ResidencyRefusal("layer 3 is elsewhere")))
    assert main(["try", "m", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["refusal"] == "residency"


def test_after_the_document_an_error_adds_no_second(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def act(ctx: typer.Context) -> None:
        render.document(output_of(ctx), {"defects": 3})
        raise errors.CheckFailed("3 defects")

    command(act)
    assert main(["try", "m", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"defects": 3}
    assert captured.err == "larql: error: 3 defects\n"


def test_debug_shows_the_traceback(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(failing(errors.SourceError("cut short")))
    assert main(["try", "m"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    for arguments in (["--debug", "try", "m"], ["try", "m", "--debug"]):
        assert main(arguments) == 2
        text = capsys.readouterr().err
        assert "Traceback" in text
        assert text.endswith("larql: error: cut short\n")


def test_an_error_cannot_drive_the_terminal(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(failing(errors.SourceError("name \x1b[31mred\x1b[0m\x9b1m\nsecond\u202eline")))
    main(["try", "m", "--json"])
    captured = capsys.readouterr()
    expected = r"name \x1b[31mred\x1b[0m\x9b1m second\u202eline"
    assert captured.err == f"larql: error: {expected}\n"
    assert not any(character in captured.out for character in "\x1b\x9b\u202e")


def test_a_connection_that_breaks_is_an_error(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(failing(BrokenPipeError(32, "Broken pipe")))
    assert main(["try", "m"]) == 2
    assert capsys.readouterr().err == "larql: error: Broken pipe\n"


def test_warnings_are_lines_on_standard_error(
    command: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda ctx: warnings.warn("the cache\nis read-only", stacklevel=1))
    assert main(["try", "m"]) == 0
    assert capsys.readouterr() == ("", "larql: warning: the cache is read-only\n")
    assert main(["try", "m", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_exit_status_is_passed_on(command: Callable[[Act], None]) -> None:
    command(failing(typer.Exit(1)))
    assert main(["try", "m"]) == 1


def test_windows_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    status = main(["--version"])
    monkeypatch.undo()
    assert status == 2
    assert "Windows" in capsys.readouterr().err


def spawn(*arguments: str, **streams: int) -> subprocess.Popen[bytes]:
    # Buffered, as in a shell: what fails then fails at the end and not in the middle.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen([sys.executable, "-m", "larql", *arguments], env=env, **streams)


# Help is flushed by Typer as it is written, the version by us at the end.
ANSWERS = pytest.mark.parametrize("flag", ["--help", "--version"])


@ANSWERS
def test_a_reader_that_leaves_ends_it_silently(flag: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = spawn(flag, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert process.communicate()[1] == b""
    assert process.returncode == 141


def test_a_reader_of_errors_that_leaves_ends_it_silently() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = spawn("nonsense", "--json", stderr=writer, stdout=subprocess.PIPE)
    os.close(writer)
    process.communicate()
    assert process.returncode == 141


@ANSWERS
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NO /dev/full ON THIS SYSTEM")
def test_an_answer_that_does_not_fit_is_an_error(flag: str) -> None:
    with Path("/dev/full").open("wb") as full:
        process = spawn(flag, stdout=full.fileno(), stderr=subprocess.PIPE)
        text = process.communicate()[1].decode()
    assert process.returncode == 2
    assert text.startswith("larql: error: ")
    assert "No space left" in text
    assert text.count("\n") == 1


def test_closed_streams_are_no_defect() -> None:
    script = f"exec {sys.executable} -m larql --help >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 0
    script = f"exec {sys.executable} -m larql nonsense --json >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 2


def test_an_answer_with_nowhere_to_go_is_refused() -> None:
    script = f"exec {sys.executable} -m larql --version >&-"
    done = subprocess.run(["sh", "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "standard output is closed" in done.stderr


def test_a_request_to_end_is_one_line_and_cleans_up() -> None:
    program = (
        "import os, signal, sys\n"
        "from larql.cli import app, main\n"
        "def body(arguments, output):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "    finally:\n"
        "        print('cleaned')\n"
        "main._run = body\n"
        "sys.exit(main.main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (143, "cleaned\n")
    assert done.stderr == "larql: error: terminated\n"


def test_answers_print_in_any_locale() -> None:
    program = (
        "import sys; from larql.cli import app, main, render\n"
        "app.__version__ = 'wéird\\udcff'; sys.exit(main.main(['--version']))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert process.stderr == b""
    assert process.stdout == rb"larql w\xe9ird\udcff" + b"\n"


def test_errors_print_in_any_locale(
    larql_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    process = larql_process("wéird\udcff", env={"PYTHONIOENCODING": "ascii"})
    assert process.returncode == 2
    assert process.stderr.startswith(r"larql: error: No such command 'w\xe9ird\udcff'")
    process = larql_process("\udcff", "--json")
    assert "\\\\udcff" in process.stdout
    json.loads(process.stdout)


def test_python_m_is_the_same_entry(
    larql_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert larql_process("--version").stdout == f"larql {__version__}\n"
