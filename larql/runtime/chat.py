"""A conversation as the text that the model was trained on, by its own chat template.

A template is a program from whoever published the model, so it runs in Jinja's sandbox, which
cannot reach anything but the conversation, and within limits of time, memory and output. The
environment is that of the ``transformers`` library, for which templates are written.
"""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from larql.errors import TokenizerError, UsageError
from larql.format.untrusted import open_regular, read_exactly, read_json_object, shown
from larql.runtime.text import special_token_texts

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "load_chat_template"]

TEMPLATE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
MAX_TEMPLATE_BYTES = 1 << 20
MAX_OUTPUT_CHARACTERS = 16 << 20
MAX_SECONDS = 5.0
MAX_MEMORY_BYTES = 512 << 20
MAX_INTEGER_BITS = 4096

T = TypeVar("T")

# The memory limit belongs to the process: two renderings at once would restore each other's.
_limited = threading.Lock()


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template and the special tokens that it may write.

    Attributes
    ----------
    source : str
        The Jinja template.
    where : str
        The file it came from, to start messages with.
    special : Mapping of str to str
        ``bos_token``, ``eos_token``, ... as the template refers to them.
    """

    source: str
    where: str
    special: Mapping[str, str]

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
    ) -> str:
        """Return the conversation as one text.

        Parameters
        ----------
        messages : sequence of Mapping
            In order, each with ``role`` and usually ``content``.
        add_generation_prompt : bool
            End with what introduces the model's next message.
        now : datetime, optional
            What a template that writes the date takes for the present; default the present.

        Returns
        -------
        str
            The text. It may begin with BOS, which encoding does not double.

        Raises
        ------
        UsageError
            If there is no message or one has no role.
        TokenizerError
            If the template is malformed, refuses the conversation, fails, leaves the sandbox, or
            exceeds its limits.
        """
        if not messages:
            raise UsageError("the conversation is empty; give at least one message")
        for index, message in enumerate(messages):
            if not isinstance(message.get("role"), str):
                raise UsageError(f"message {index} has no role; expected a role and its content")
        environment = _environment(now or datetime.now())
        context: dict[str, object] = {
            **self.special,
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with _memory_limit(MAX_MEMORY_BYTES):
                template = environment.from_string(self.source)
                return _joined(template.generate(context))
        except MemoryError:
            raise TokenizerError(
                f"{self.where}: the chat template needs more than {MAX_MEMORY_BYTES >> 20} MB"
            ) from None
        # A template's own code can raise anything, such as TypeError for a message without text.
        except Exception as problem:  # noqa: BLE001
            raise TokenizerError(f"{self.where}: {_explained(problem)}") from None


def load_chat_template(files: Mapping[str, Path], *, name: str = "default") -> ChatTemplate:
    """Load a chat template of a container.

    Parameters
    ----------
    files : Mapping of str to Path
        The container's text files by name. ``chat_template.jinja`` is the default template; else,
        and for other names, the ``chat_template`` of ``tokenizer_config.json``.
    name : str
        Which template, where a model has several.

    Returns
    -------
    ChatTemplate
        With the model's special tokens.

    Raises
    ------
    UsageError
        If the model has no chat template, or none of that name.
    TokenizerError
        If a file is malformed.
    """
    templates = _templates(files)
    if not templates:
        raise UsageError(
            "the model has no chat template, so it was probably not trained for conversations; "
            "give plain text as prompt, without --chat"
        )
    if name not in templates:
        raise UsageError(
            f"the model has no chat template {shown(name)}; it has {', '.join(sorted(templates))}"
        )
    source, where = templates[name]
    return ChatTemplate(source, where, special_token_texts(files))


def _templates(files: Mapping[str, Path]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    path = files.get(CONFIG)
    stored = read_json_object(path, TokenizerError).get("chat_template") if path else None
    if isinstance(stored, str):
        found["default"] = stored, str(path)
    elif stored is not None:
        for entry in stored if isinstance(stored, list) else [stored]:
            match entry:
                case {"name": str(name), "template": str(template)}:
                    found[name] = template, str(path)
                case _:
                    raise TokenizerError(
                        f"{path}: chat_template is neither a template nor a list of named ones"
                    )
    if TEMPLATE in files:
        found["default"] = _template_text(files[TEMPLATE]), str(files[TEMPLATE])
    return found


def _template_text(path: Path) -> str:
    with open_regular(path, TokenizerError) as (descriptor, status):
        if status.st_size > MAX_TEMPLATE_BYTES:
            raise TokenizerError(
                f"{path}: has {status.st_size} bytes; expected at most {MAX_TEMPLATE_BYTES}"
            )
        content = read_exactly(descriptor, 0, status.st_size, str(path), TokenizerError)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise TokenizerError(f"{path}: is not UTF-8 text") from None


def _joined(parts: Iterable[str]) -> str:
    from jinja2.exceptions import SecurityError

    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size > MAX_OUTPUT_CHARACTERS:
            raise SecurityError(f"writes more than {MAX_OUTPUT_CHARACTERS} characters")
    return "".join(held)


def _explained(problem: Exception) -> str:
    from jinja2.exceptions import SecurityError, TemplateSyntaxError

    reason = " ".join(str(problem).split())
    if isinstance(problem, _RefusedByTemplateError):
        return f"the chat template refuses the conversation: {reason}"
    if isinstance(problem, TemplateSyntaxError):
        return f"the chat template is malformed in line {problem.lineno}: {reason}"
    if isinstance(problem, SecurityError):
        return f"the chat template was stopped: {reason}"
    return f"the chat template fails on this conversation: {type(problem).__name__}: {reason}"


class _RefusedByTemplateError(Exception):
    """A template's own call of ``raise_exception``."""


@contextmanager
def _memory_limit(extra: int) -> Iterator[None]:
    """Let the process allocate at most ``extra`` bytes more than it has.

    Counted is private writable memory; mapped weights are outside it (setrlimit(2), RLIMIT_DATA).
    """
    with _limited:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        data_pages = int(Path("/proc/self/statm").read_text().split()[5])
        limit = data_pages * resource.getpagesize() + extra
        for bound in (soft, hard):
            if bound != resource.RLIM_INFINITY:
                limit = min(limit, bound)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """Return the environment of the ``transformers`` library, with a deadline.

    Jinja is imported here because only conversations need it.
    """
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    deadline = time.monotonic() + MAX_SECONDS

    def tick() -> None:
        if time.monotonic() > deadline:
            raise SecurityError(f"runs longer than {MAX_SECONDS:g} seconds")

    def counted(items: Iterable[T]) -> Iterator[T]:
        for item in items:
            tick()
            yield item

    class Generation(Extension):
        """``{% generation %}`` marks the model's own words for training; here it is a scope."""

        tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def _generate(
            self,
            source: nodes.Template,
            name: str | None,
            filename: str | None,
            defer_init: bool = False,
        ) -> str:
            for loop in source.find_all(nodes.For):
                guard = nodes.EnvironmentAttribute("counted")
                loop.iter = nodes.Call(guard, [loop.iter], [], None, None)
            return super()._generate(source, name, filename, defer_init)

        def call(self, context: Context, obj: object, /, *args: object, **named: object) -> object:
            tick()
            return super().call(context, obj, *args, **named)

        def call_binop(
            self, context: Context, operator: str, left: object, right: object
        ) -> object:
            if isinstance(left, int) and isinstance(right, int):
                bits = (left.bit_length(), right.bit_length())
                if (bits[0] * right if operator == "**" else sum(bits)) > MAX_INTEGER_BITS:
                    raise SecurityError(f"computes an integer of over {MAX_INTEGER_BITS} bits")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: object) -> None:
        raise _RefusedByTemplateError(str(message))

    def strftime_now(pattern: str) -> str:
        return now.strftime(pattern)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return _joined(counted(encoder.iterencode(value)))

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.extend(counted=counted)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
