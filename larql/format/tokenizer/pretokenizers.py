"""How byte-level BPE models split a text before merging, by the name that GGUF records.

``tokenizer.ggml.pre`` holds only a name; the rule itself is in the ``tokenizer.json`` that the
model was published with. Each rule here is that file's: its normalizer, its pre-tokenizers and
whether whole words bypass the merges. A name is listed only where that file's rule is known to the
letter, since a wrong split gives ids that look right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["PRE_TOKENIZERS", "PreTokenizer"]

Stage = Mapping[str, object]


@dataclass(frozen=True)
class PreTokenizer:
    """The rule behind one name.

    Attributes
    ----------
    stages : tuple of Mapping
        Pre-tokenizers in the ``tokenizers`` JSON format, in order.
    composes : bool
        Whether text is brought to Unicode normalisation form C first.
    whole_words : bool
        Whether a word that is a token is taken as it is, without merging (``ignore_merges``).
    adds_bos : bool
        Whether BOS is added where the file does not say.
    """

    stages: tuple[Stage, ...]
    composes: bool = False
    whole_words: bool = False
    adds_bos: bool = False


def _split(pattern: str) -> Stage:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _byte_level(*, splits: bool) -> Stage:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": splits,
    }


def _digits(*, individual: bool) -> Stage:
    return {"type": "Digits", "individual_digits": individual}


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_PATH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_PATH_SYMBOLS}|{_SPACES}"
_O200K = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_PATH_SYMBOLS}|{_SPACES}"
)

# Escaped, because an editor that normalises text would silently change single letters such as
# U+212A and the ends of ranges such as U+1F7D.
_CASED_LETTERS = (
    r"A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    r"\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    r"\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-"
    r"\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-"
    r"\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-"
    r"\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    r"\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    r"\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2"
    r"\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    r"\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    r"\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    r"\U0001e900-\U0001e943"
)
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)


def _unescaped(ranges: str) -> str:
    return ranges.encode("ascii").decode("unicode_escape")


_BYTES = _byte_level(splits=False)
_GPT2 = _byte_level(splits=True)
_DIGITS_GPT2 = (_digits(individual=True), _GPT2)
_LLAMA3_RULE = PreTokenizer((_split(_LLAMA3), _BYTES), whole_words=True, adds_bos=True)
_NEOX_RULE = PreTokenizer((_GPT2,), composes=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "gpt-2": PreTokenizer((_GPT2,)),
        "phi-2": PreTokenizer((_GPT2,)),
        "mpt": _NEOX_RULE,
        "olmo": _NEOX_RULE,
        "smollm": PreTokenizer(_DIGITS_GPT2),
        "starcoder": PreTokenizer(_DIGITS_GPT2),
        "refact": PreTokenizer(_DIGITS_GPT2),
        "command-r": PreTokenizer(_DIGITS_GPT2, composes=True),
        "llama-bpe": _LLAMA3_RULE,
        "llama3": _LLAMA3_RULE,
        "llama-v3": _LLAMA3_RULE,
        "dbrx": PreTokenizer((_split(_LLAMA3), _BYTES)),
        "qwen2": PreTokenizer((_split(_QWEN2), _BYTES), composes=True),
        "qwen35": PreTokenizer((_split(_QWEN35), _BYTES), composes=True),
        "tekken": PreTokenizer((_split(_TEKKEN), _BYTES), whole_words=True, adds_bos=True),
        "gpt-4o": PreTokenizer((_split(_O200K), _BYTES)),
        "falcon": PreTokenizer(
            (
                {"type": "Punctuation", "behavior": "Contiguous"},
                _GPT2,
                _digits(individual=False),
                _split("[0-9][0-9][0-9]"),
            )
        ),
        "deepseek-llm": PreTokenizer(
            (
                _split("[\r\n]"),
                _split(rf"\s?[{_unescaped(_CASED_LETTERS)}]+"),
                _split(_DEEPSEEK_PUNCTUATION),
                _split(r"\s+$"),
                _split(_DEEPSEEK_CJK),
                _digits(individual=True),
                _BYTES,
            )
        ),
        "deepseek-coder": PreTokenizer(
            (
                _split("[\r\n]"),
                _split(r"\s?\p{L}+"),
                _split(r"\s?\p{P}+"),
                _split(_DEEPSEEK_CJK),
                _digits(individual=True),
                _BYTES,
            )
        ),
        "deepseek-v3": PreTokenizer(
            (
                _split(r"\p{N}{1,3}"),
                _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                _split(_DEEPSEEK_V3),
                _BYTES,
            )
        ),
    }
)
