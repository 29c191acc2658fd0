"""Literal blocks, as ggml's reference routines write and read them."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.codec import ENCODINGS, decode, encodable_names, encode
from tests.format.codec_cases import BLOCK_NAMES

# name -> bytes of a row of 64 or 256 columns, some decoded elements, SHA-256 of all of them as
# little-endian float32. Where the encoding can be written, the bytes are those of ``golden_row``.
GOLDEN = {
    "q8_0": (
        """
        691ca5b7d6023a7fe846c840db6c21e2b0745c50515e79b7ea2b78e84fd959fcad53a1201bf3d7c8c4cde203
        3069d0217e0a7f23d26c3408e8d4ccd0e1fd265bbd0a63ea
        """,
        {
            0: -0.3919181823730469,
            1: -0.3143959045410156,
            16: 0.3962249755859375,
            17: 0.34454345703125,
            31: 0.3574638366699219,
            32: 0.24410247802734375,
            48: -0.4158782958984375,
            63: -0.1988983154296875,
        },
        "dab4387f5bc24ff5fe7af6f1a17a1e26fe4df8328ac5437a9556fade4d79cd39",
    ),
    "q4_0": (
        """
        60ac2e3d3b2804d09a540c943aa1268add3198b0b6195b8cacbbbab8a5816b26c0772096
        """,
        {
            0: -0.41015625,
            1: -0.341796875,
            16: 0.41015625,
            17: 0.341796875,
            31: 0.341796875,
            32: 0.287109375,
            48: -0.4306640625,
            63: -0.1435546875,
        },
        "4d4cfd91711601d33d09148dff7afbf0f8d4db9aee067df661a41e7974e01fcb",
    ),
    "q4_1": (
        """
        002c40b6d0c1c3d6fa1f559bf25bc44ec96411ce772fd0b827e4926131211315395d81c80f66df38
        """,
        {
            0: -0.390625,
            1: -0.328125,
            16: 0.421875,
            17: 0.359375,
            31: 0.359375,
            32: 0.21490478515625,
            48: -0.3682861328125,
            63: -0.25164794921875,
        },
        "2c430c20cf5a0efc819ade9a7c6736bab8590e38fea01329e705daa5101a3fbb",
    ),
    "q5_0": (
        """
        60a84f65606a4b696540199033b7173865525c04ba6198acfe04f1936d2295f7386674604a03b65c80ff303c
        """,
        {
            0: -0.3759765625,
            1: -0.3076171875,
            16: 0.41015625,
            17: 0.341796875,
            31: 0.341796875,
            32: 0.21533203125,
            48: -0.4306640625,
            63: -0.21533203125,
        },
        "b87006f15e9b0234d7550a95cf57ddd6e4de13e90d04dac66a433129538c13f1",
    ),
    "q5_1": (
        """
        be2740b6b09a9f95a08387ade52fa937e5a6887ca2c9129d3a2bd0b800db064c3fc934c27142263b62ab1390
        0fccbf70
        """,
        {
            0: -0.390625,
            1: -0.299896240234375,
            16: 0.39569091796875,
            17: 0.335205078125,
            31: 0.365447998046875,
            32: 0.24530029296875,
            48: -0.43218994140625,
            63: -0.20635986328125,
        },
        "9808d9771ed6b4e21e1f35f4e9b98b2815502371b99ddc32df35de51ea6acfc9",
    ),
    "q2_k": (
        """
        2982db348de63f98f14aa3fc55ae0760b9126bc41d76cf2881da338ce53e97f049a2fb54ad065fb8116ac31c
        75ce2780d9328be43d96ef48a1fa53ac055eb71069c21b74cd267fd8318ae33c95ee47a09a299a29
        """,
        {
            0: 0.30633544921875,
            1: 0.7001953125,
            16: -0.2625732421875,
            17: -0.175048828125,
            31: -0.35009765625,
            32: 0.39385986328125,
            100: -0.13128662109375,
            128: -0.6126708984375,
            200: 0.21881103515625,
            255: -0.2625732421875,
        },
        "09e7de6ab793da3a6cbb25a1a95ea2527193998481634d3c0579bd9cd9d0d87e",
    ),
    "q3_k": (
        """
        2982db348de63f98f14aa3fc55ae0760b9126bc41d76cf2881da338ce53e97f049a2fb54ad065fb8116ac31c
        75ce2780d9328be43d96ef48a1fa53ac055eb71069c21b74cd267fd8318ae33c95ee47a0f952ab045db60f68
        c11a73cc257ed73089e23b94ed469ff851aa035c9a29
        """,
        {
            0: -0.30633544921875,
            1: 0.6126708984375,
            16: 0.0875244140625,
            17: -0.175048828125,
            31: -0.35009765625,
            32: -2.3631591796875,
            100: -1.4879150390625,
            128: 1.05029296875,
            200: -0.2625732421875,
            255: -0.0,
        },
        "1514bf5c0f05c738215312a4bacc66279e27020caeb39e805bcadd46bd3d1c52",
    ),
    "q4_k": (
        """
        4c1d8727cc1668b0cd1466b0ffcd9856704123160a1f345b92db148ef864f18e2dec9c6d3f2115193e558cc3
        0c66d03ceb258ef965f2802ddc9c6d302215293e558bb40c56c13bb845e3924213e4c6b95b2c0dd0c4d8ed03
        3a72ba147eda66e39140efb08173666a6f85abd32b75de49fc459ef964e07d1bba793a1bedd0d4e90e255c95
        ee48b33fbb59f7a66637190c
        """,
        {
            0: -0.3822479248046875,
            1: -0.3201751708984375,
            16: 0.4246978759765625,
            17: 0.3626251220703125,
            31: 0.3626251220703125,
            32: 0.208526611328125,
            100: 0.078369140625,
            128: 1.732269287109375,
            200: 0.5063629150390625,
            255: -1.0879364013671875,
        },
        "4e34cc537acbfae462514004e4beece3b766b7e5950c92c19e95721489c81e51",
    ),
    "q5_k": (
        """
        1e19dc27cc1766b0cd1466aeffcd9767dc10dcec21b97845de4f7443d3b086e7610f7ba5e148845dd168fba2
        11487a5df093472e163f6ab725b6380df2c9f20e3ac939cb7f433a336faa19980acda179c95c1ff5dcf5104c
        cb3bcc70453c356fac09890abe9369728cd8259516d99d74b7490cc1a8b1db1775e57629eec4dde72280ef70
        23e7cec5df1b58c757faae94fb8b3ff3e9d0fd3875f48528ddb0b9c30f5bbb3bdea1767f79a3e05ede70350b
        """,
        {
            0: -0.39910888671875,
            1: -0.3091583251953125,
            16: 0.380462646484375,
            17: 0.3504791259765625,
            31: 0.3504791259765625,
            32: 0.24801254272460938,
            100: 0.14691162109375,
            128: 1.6863670349121094,
            200: 0.4393196105957031,
            255: -1.1666259765625,
        },
        "3b4b5e0c05a578731a52b3fab7de3ff7c5e69f3e90cc2ac0d48edc9bd2137785",
    ),
    "q6_k": (
        """
        a7120a2002c0565f8e805955c8072403273a7a06d054364410a6fb0be881e70a59c37a0eef0d88cf6446fc88
        d0fee0a74d81a16e178dafbe69015566430d73a68c491364776865e9304e3fe66061706a114590554098ce10
        d063ccf9edb442a3116c5315d747b3f0d7cc7d0f3b747d5144c6103c354bef9fdc371f14eb8af64407ab4a1a
        69287a8406414ab4a1a69384a84024c4983b8a19a82a64b2ec26131808a84c136231408e195690ca04312612
        c7ab80630796258504961052589690c9e8eaced5b2c59da78980e5e6d1d0afb0eb11
        """,
        {
            0: -0.3987693786621094,
            1: -0.31208038330078125,
            16: 0.3973245620727539,
            17: 0.34964561462402344,
            31: 0.34964561462402344,
            32: 0.25284290313720703,
            100: 0.1430368423461914,
            128: 1.7193317413330078,
            200: 0.4413914680480957,
            255: -1.155853271484375,
        },
        "9c7a452c3442a2837da865a04ae8e9460f2c057e90a56db3090e6df99d6382ba",
    ),
    "iq4_nl": (
        """
        9a29db348de63f98f14aa3fc55ae0760b9129a291d76cf2881da338ce53e97f049a2fb54
        """,
        {
            0: 1.6629638671875,
            1: -2.14434814453125,
            16: 3.01959228515625,
            17: -2.84454345703125,
            31: -4.55126953125,
            32: 3.01959228515625,
            48: -4.55126953125,
            63: -1.53167724609375,
        },
        "63a48bc7b496637faa8d2e41634a79747f8416732b6f992521e99b54bf4f13b4",
    ),
    "iq4_xs": (
        """
        9a29db348de63f98f14aa3fc55ae0760b9126bc41d76cf2881da338ce53e97f049a2fb54ad065fb8116ac31c
        75ce2780d9328be43d96ef48a1fa53ac055eb71069c21b74cd267fd8318ae33c95ee47a0f952ab045db60f68
        c11a73cc257ed73089e23b94ed469ff851aa035cb50e67c01972cb247dd62f88e13a93ec459ef750a9025bb4
        0d66bf18
        """,
        {
            0: -131.98681640625,
            1: 31.72760009765625,
            16: 143.40875244140625,
            17: -62.18609619140625,
            31: -105.33563232421875,
            32: -36.41015625,
            100: -45.9503173828125,
            128: 77.37158203125,
            200: 13.65380859375,
            255: 104.67919921875,
        },
        "acd66f8bfe06541cbee6be24b7ce4607b7570a5b6d418780bc0e69b8e7c763f1",
    ),
    "mxfp4": (
        """
        7c5d5c5b5064d69a346ca45bb6520add567db2694b1cacbccab0a3063b52c61166a2
        """,
        {0: -0.375, 1: -0.25, 16: 0.375, 17: 0.375, 31: 0.375, 32: 0.25, 48: -0.375, 63: -0.25},
        "bde03858f258339f185f2b26feb94a31fe77ae1438e6341328b60666a457ad32",
    ),
}


def golden_row(columns: int) -> npt.NDArray[np.float32]:
    """Both signs, a different reach in each run of 32, no two runs alike."""
    i = np.arange(columns)
    numerators = (7 * i * i + 13 * i) % 257 - 100
    return (numerators / 64 * (1 + i // 32 % 5) / 4).astype(np.float32)


def stored(name: str) -> tuple[npt.NDArray[np.uint8], int]:
    data = np.frombuffer(bytes.fromhex(GOLDEN[name][0]), np.uint8)
    return data, max(64, ENCODINGS[name].block_elements)


@pytest.mark.parametrize("name", GOLDEN)
def test_reads_as_ggml_does(name: str) -> None:
    data, columns = stored(name)
    found = decode(ENCODINGS[name], data, columns)
    _, elements, digest = GOLDEN[name]
    assert {i: float(found[i]) for i in elements} == elements
    assert hashlib.sha256(found.astype("<f4").tobytes()).hexdigest() == digest


@pytest.mark.parametrize("name", [name for name in GOLDEN if name in encodable_names()])
def test_writes_as_ggml_does(name: str) -> None:
    data, columns = stored(name)
    assert encode(ENCODINGS[name], golden_row(columns)).tobytes() == data.tobytes()


def test_every_block_encoding_has_a_golden() -> None:
    assert set(GOLDEN) == set(BLOCK_NAMES)
