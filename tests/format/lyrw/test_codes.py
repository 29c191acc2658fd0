"""Tags of LYRW files, against the numbers of the specification."""

from __future__ import annotations

import dataclasses

import pytest

from larql.errors import ContainerError, EncodingError, GenerationError
from larql.format.encoding import ENCODINGS
from larql.format.generation import Generation
from larql.format.lyrw.codes import (
    BankKind,
    Browse,
    Format,
    Layout,
    Packing,
    Role,
    encoding_of,
    format_code,
    format_text,
    packing_of,
    packing_text,
    role_text,
    row_bytes,
)
from larql.format.lyrw.prelude import check_prelude, generation_name, lyrw_version

PUBLIC = {"f32": 0, "f16": 1, "bf16": 2, "q4_0": 3, "q4_k": 4, "q6_k": 5, "q8_0": 6, "mxfp4": 8}
PRIVATE = {
    "q4_1": 0x8003,
    "q5_0": 0x8006,
    "q5_1": 0x8007,
    "q2_k": 0x800A,
    "q3_k": 0x800B,
    "q5_k": 0x800D,
    "iq4_nl": 0x8014,
    "iq4_xs": 0x8017,
}


def test_every_encoding_has_its_code_and_back() -> None:
    expected = PUBLIC | PRIVATE
    by_rows = {name: enc for name, enc in ENCODINGS.items() if enc.unpacked is None}
    assert {name: format_code(enc) for name, enc in by_rows.items()} == expected
    for name, code in expected.items():
        assert encoding_of(code) is ENCODINGS[name]
    for code in set(range(0x10000)) - set(expected.values()):
        assert encoding_of(code) is None


def test_an_encoding_without_a_code_is_refused() -> None:
    strange = dataclasses.replace(ENCODINGS["f32"], name="f7")
    for encoding in (strange, ENCODINGS["q8_0_r16"]):
        with pytest.raises(EncodingError, match=f"{encoding.name} has no code in LYRW files"):
            format_code(encoding)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (Role, "gate up gate_up_fused down bias scales latent_in latent_out"),
        (Format, "f32 f16 bf16 q4_0 q4_k q6_k q8_0 fp4 mxfp4 nvfp4 mxfp8"),
        (Packing, "row_major blocks_inline block_values block_scales"),
        (BankKind, "dense routed shared"),
        (Browse, "none direct strided"),
        (Layout, "unspecified contiguous_halves interleaved"),
    ],
)
def test_tags_count_from_zero(names: type[Role], expected: str) -> None:
    assert [member.name.lower() for member in names] == expected.split()
    assert [int(member) for member in names] == list(range(len(expected.split())))


def test_unknown_tags_have_a_text() -> None:
    assert role_text(3) == "down"
    assert role_text(8) == "unknown role 8"
    assert format_text(0x800D) == "q5_k"
    assert format_text(9) == "nvfp4"
    assert format_text(0x800C) == "unknown format 32780"
    assert packing_text(4) == "unknown packing 4"


@pytest.mark.parametrize(
    ("code", "packing", "columns", "expected"),
    [
        (0, 0, 5, 20),
        (1, 0, 5, 10),
        (4, 1, 512, 288),
        (4, 0, 512, 288),
        (8, 1, 64, 34),
        (8, 2, 64, 32),
        (8, 3, 2, 2),
        (0x8003, 1, 32, 20),
        (0, 1, 5, None),
        (4, 2, 512, None),
        (9, 2, 64, None),
        (7, 0, 64, None),
        (0x9000, 1, 64, None),
        (0, 4, 5, None),
    ],
)
def test_bytes_of_a_row(code: int, packing: int, columns: int, expected: int | None) -> None:
    assert row_bytes(code, packing, columns) == expected


@pytest.mark.parametrize(("code", "packing"), [(4, 1), (8, 1), (8, 2)])
def test_rows_are_whole_blocks(code: int, packing: int) -> None:
    with pytest.raises(EncodingError, match="48 columns are not a multiple"):
        row_bytes(code, packing, 48)


def test_whole_tensors_have_one_packing() -> None:
    assert packing_of(ENCODINGS["bf16"]) is Packing.ROW_MAJOR
    assert packing_of(ENCODINGS["mxfp4"]) is Packing.BLOCKS_INLINE


def test_versions_trail_generations_by_one() -> None:
    assert {gen: lyrw_version(gen) for gen in Generation} == {
        Generation.VINDEX2: 1,
        Generation.VINDEX3: 2,
    }
    assert generation_name(0) is None
    for version in range(1, 40):
        assert generation_name(version) == f"VINDEX{version + 1}"


@pytest.mark.parametrize(
    ("head", "wanted", "error", "words"),
    [
        ("", 3, ContainerError, "0 bytes are too few for a LYRW file"),
        ("57 52 59 4c 02 00 00", 3, ContainerError, "7 bytes are too few"),
        (
            "47 47 55 46 02 00 00 00",
            3,
            ContainerError,
            "begins with bytes 47 47 55 46, expected 57 52 59 4c of a LYRW file; it is something",
        ),
        ("4c 59 52 57 00 00 00 02", 3, ContainerError, "LYRW file; its numbers are big-endian"),
        (
            "57 52 59 4c 01 00 00 00",
            3,
            GenerationError,
            "LYRW format version 1 requires the VINDEX2 loader; this is the VINDEX3 loader, which "
            "reads version 2",
        ),
        (
            "57 52 59 4c 02 00 00 00",
            2,
            GenerationError,
            "LYRW format version 2 requires the VINDEX3 loader; this is the VINDEX2 loader, which "
            "reads version 1",
        ),
        ("57 52 59 4c 03 00 00 00", 3, GenerationError, "version 3 requires the VINDEX4 loader"),
        ("57 52 59 4c 03 00 00 00", 2, GenerationError, "version 3 requires the VINDEX4 loader"),
        ("57 52 59 4c 00 00 00 00", 3, GenerationError, "version 0 belongs to no generation"),
    ],
)
def test_what_does_not_begin_as_lyrw_of_the_generation_is_refused(
    head: str, wanted: int, error: type[ContainerError], words: str
) -> None:
    with pytest.raises(error) as caught:
        check_prelude(bytes.fromhex(head), Generation(f"VINDEX{wanted}"), "a.lyrw")
    assert type(caught.value) is error
    assert str(caught.value).startswith("a.lyrw: ")
    assert words in str(caught.value)


def test_a_pointer_in_place_of_the_file_says_how_to_fetch_it() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    with pytest.raises(ContainerError, match="Git LFS pointer"):
        check_prelude(pointer, Generation.VINDEX3, "a.lyrw")
