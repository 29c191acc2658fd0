"""Schema versions and generations: which number belongs to whom, and how strangers are refused."""

from __future__ import annotations

import pytest

from larql.errors import GenerationError
from larql.format.generation import (
    Generation,
    SchemaVersion,
    generation_of,
    parse_schema_version,
    readable_schemas,
    require_generation,
    supported_text,
    written_schema,
)

READABLE = {
    1: Generation.VINDEX2,
    2: Generation.VINDEX2,
    3: Generation.VINDEX3,
    4: Generation.VINDEX3,
}


def parsed(value: object) -> SchemaVersion:
    return parse_schema_version(value, "m/index.json")


def refusal(value: object) -> str:
    with pytest.raises(GenerationError) as caught:
        parsed(value)
    message = str(caught.value)
    assert message.startswith("m/index.json: ")
    assert "1-2 (VINDEX2), 3-4 (VINDEX3)" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("number", range(-2, 12))
def test_every_number_belongs_to_one_generation_or_none(number: int) -> None:
    claims = [g for g in Generation if SchemaVersion(number) in readable_schemas(g)]
    assert claims == ([READABLE[number]] if number in READABLE else [])
    if number in READABLE:
        assert generation_of(parsed(number)) is READABLE[number]
    else:
        assert str(number) in refusal(number)
        with pytest.raises(GenerationError, match=str(number)):
            generation_of(SchemaVersion(number))


@pytest.mark.parametrize("value", ["3", 3.0, True, False, [3], {"n": 3}, float("nan")])
def test_only_a_plain_integer_is_a_version(value: object) -> None:
    assert repr(value) in refusal(value)


def test_an_absent_version_is_said_to_be_absent() -> None:
    assert "no `version` field" in refusal(None)


def test_a_schema_is_not_a_number() -> None:
    number: object = 3
    assert parsed(number) != number
    assert parsed(3) < parsed(4)


def test_writers_write_what_readers_read() -> None:
    assert {g: written_schema(g).number for g in Generation} == {
        Generation.VINDEX2: 2,
        Generation.VINDEX3: 3,
    }
    for generation in Generation:
        assert written_schema(generation) in readable_schemas(generation)


def test_what_is_supported_is_said_in_words() -> None:
    assert supported_text() == "1-2 (VINDEX2), 3-4 (VINDEX3)"


@pytest.mark.parametrize("number", READABLE)
@pytest.mark.parametrize("wanted", Generation)
def test_a_loader_refuses_the_other_generation_by_name(number: int, wanted: Generation) -> None:
    schema, owner = SchemaVersion(number), READABLE[number]
    if owner is wanted:
        require_generation(schema, wanted, "m")
        return
    with pytest.raises(GenerationError) as caught:
        require_generation(schema, wanted, "m/index.json")
    assert str(caught.value) == (
        f"m/index.json: schema version {number} requires the {owner.value} loader; this is the "
        f"{wanted.value} loader"
    )
