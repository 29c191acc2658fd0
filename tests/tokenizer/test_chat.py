"""Conversations through a model's own template, and templates that mean harm."""

from __future__ import annotations

import json
import resource
from datetime import datetime
from pathlib import Path

import pytest

from larql.errors import TokenizerError, UsageError
from larql.runtime import chat
from larql.runtime.chat import ChatTemplate, load_chat_template

MEMORY_LIMIT = resource.getrlimit(resource.RLIMIT_DATA)
HELLO = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source: str, messages: list[dict[str, object]] | None = None, **special: str) -> str:
    found: list[dict[str, object]] = [*HELLO] if messages is None else messages
    return ChatTemplate(source, "chat_template.jinja", special).render(found)


def test_a_usual_template() -> None:
    template = ChatTemplate(CHATML, "f", {})
    messages = [{"role": "system", "content": "S"}, *HELLO]
    without = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(messages, add_generation_prompt=False) == without
    assert template.render(messages) == without + "<|im_start|>assistant\n"


def test_special_tokens_are_named() -> None:
    assert (
        render("{{ bos_token }}a{{ eos_token }}", bos_token="<s>", eos_token="</s>") == "<s>a</s>"
    )
    assert render("[{{ bos_token }}]") == "[]"


def test_blocks_are_trimmed_and_one_last_newline_is_dropped() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc\n") == "a\nb\nc"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages|tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{{ {'b': '\u00e9<', 'a': 1}|tojson }}", '{"b": "\u00e9<", "a": 1}'),
        ("{{ {'b': 1}|tojson(indent=2) }}", '{\n  "b": 1\n}'),
        ("{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}"
         "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.index0 }}{{ loop.length }}"
         "{% endfor %}", "TrueTrue01"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for x in [[1, 2], [3]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}"
         "{{ x }}{% endif %}{% endfor %}", "123"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}"
         "{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(a, obj='o', context='c') %}{{ a }}{{ obj }}{{ context }}{% endmacro %}"
         "{{ m(1, obj=2, context=3) }}", "123"),
        ("{{ tools is none }}{{ documents is none }}{{ nothing is defined }}", "TrueTrueFalse"),
        ("{{ 3 * 'ab' }}{{ 2 ** 10 }}{{ 2 * 3 }}", "ababab10246"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_present_can_be_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", "f", {})
    assert template.render(HELLO, now=datetime(2024, 7, 26)) == "26 Jul 2024"
    assert template.render(HELLO) == datetime.now().strftime("%d %b %Y")


def test_a_template_cannot_change_the_conversation() -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "Hi"}]
    for source in ("{{ messages.append(1) }}", "{{ messages[0].update({'role': 'x'}) }}"):
        with pytest.raises(TokenizerError, match="was stopped"):
            render(source, messages)
    assert messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('a\n  b') }}", "refuses the conversation: a b"),
        ("x\n{% if %}", "is malformed in line 2: Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "was stopped: access to attribute '__class__'"),
        ("{{ raise_exception.__globals__['json'] }}", "was stopped"),
        ("{{ cycler.__init__.__globals__ }}", "was stopped"),
        ("{{ messages[0].content + 1 }}", "fails on this conversation: TypeError"),
        ("{{ nothing.x }}", "fails on this conversation: UndefinedError: 'nothing' is undefined"),
        ("{{ 1 / 0 }}", "fails on this conversation: ZeroDivisionError"),
        ("{% include '/etc/passwd' %}", "fails on this conversation: TypeError: no loader"),
        ("{% for i in range(100001) %}{% endfor %}", "Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ 2 ** 100000 }}", "computes an integer of over 4096 bits"),
        ("{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}"
         "{% endfor %}", "computes an integer of over 4096 bits"),
        ("{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}", "writes more than 16777216"),
        ("{{ ('x' * 9000000, 'x' * 9000000)|tojson }}", "writes more than 16777216"),
        ("{{ 'x' * 10 ** 10 }}", "needs more than 512 MB"),
        ("{{ '%1000000000d' % 1 }}", "needs more than 512 MB"),
        ("{{ 'x'|center(10 ** 10) }}", "needs more than 512 MB"),
        ("{% set ns = namespace(x='a' * 1000) %}{% for i in range(60) %}"
         "{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "needs more than 512 MB"),
    ],
)  # fmt: skip
def test_what_a_template_may_not_do(
    source: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 600.0)  # a busy machine is another reason to stop
    with pytest.raises(TokenizerError) as refusal:
        render(source)
    assert message in str(refusal.value)
    assert str(refusal.value).startswith("chat_template.jinja: ")
    assert "\n" not in str(refusal.value)
    assert resource.getrlimit(resource.RLIMIT_DATA) == MEMORY_LIMIT


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
        "{{ m(90) }}",
        "{% for x in [1] recursive %}{{ loop(range(9999)) }}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{% for i in range(9999) %}{{ ns.x|tojson|length }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 0.1)
    with pytest.raises(TokenizerError, match=r"runs longer than 0.1 seconds|RecursionError"):
        render(source)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the conversation is empty"),
        ([{"content": "x"}], "message 0 has no role"),
        ([*HELLO, {"role": 3, "content": "x"}], "message 1 has no role"),
    ],
)
def test_conversations_that_are_none(messages: list[dict[str, object]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        render(CHATML, messages)


def container(directory: Path, jinja: bytes | None, config: object) -> dict[str, Path]:
    files = {}
    if jinja is not None:
        files["chat_template.jinja"] = directory / "chat_template.jinja"
        files["chat_template.jinja"].write_bytes(jinja)
    if config is not None:
        files["tokenizer_config.json"] = directory / "tokenizer_config.json"
        files["tokenizer_config.json"].write_text(json.dumps(config), encoding="utf-8")
    return files


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ bos_token }}"}]


@pytest.mark.parametrize(
    ("jinja", "stored", "name", "expected"),
    [
        (b"J", None, "default", "J"),
        (b"J", "C", "default", "J"),
        (None, "C", "default", "C"),
        (None, NAMED, "default", "D"),
        (None, NAMED, "tool_use", "T<s>"),
        (b"J", NAMED, "default", "J"),
        (b"J", NAMED, "tool_use", "T<s>"),
    ],
)
def test_where_templates_come_from(
    jinja: bytes | None, stored: object, name: str, expected: str, tmp_path: Path
) -> None:
    config = {"bos_token": {"content": "<s>"}, "chat_template": stored}
    template = load_chat_template(container(tmp_path, jinja, config), name=name)
    assert template.render(HELLO) == expected


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    for files in ({}, container(tmp_path, None, {"bos_token": "<s>"})):
        with pytest.raises(UsageError, match="the model has no chat template, so it was probably"):
            load_chat_template(files)
    with pytest.raises(UsageError, match="no chat template 'rag'; it has default, tool_use"):
        load_chat_template(container(tmp_path, None, {"chat_template": NAMED}), name="rag")


@pytest.mark.parametrize(
    ("jinja", "stored", "message"),
    [
        (b"\xff", None, "chat_template.jinja: is not UTF-8"),
        (b"x" * (1 << 20) + b"x", None, "expected at most 1048576"),
        (None, 3, "neither a template nor a list"),
        (None, [{"name": "x"}], "neither a template nor a list"),
    ],
)
def test_malformed_templates_are_refused(
    jinja: bytes | None, stored: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_chat_template(container(tmp_path, jinja, {"chat_template": stored}))
