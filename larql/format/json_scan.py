"""A JSON reader for large tables of known form, whose memory does not depend on hostile content.

:func:`json.loads` turns each byte of a hostile document into up to 25 bytes of objects before
anything can be checked. The scanner instead walks the text in the form that the caller expects and
stops at the first byte that differs, so only accepted members are ever held.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import NoReturn

from larql.errors import LarqlError
from larql.format.untrusted import shown

__all__ = ["JsonScanner"]

_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(
    rb'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"',
)
_SCALAR = re.compile(
    rb"(?:true|false|null|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)"
)
_SKIPPED_VALUES = 65536
_SLICE = 1 << 20


class JsonScanner:
    """Walks one JSON document.

    Parameters
    ----------
    data : bytes
        The document.
    where : str
        File and part of it, to start messages with.
    error : type of LarqlError
        The class to raise.

    Raises
    ------
    LarqlError
        Of class ``error``, here and in each method: the document is not UTF-8, or not of the
        expected form at the current position.
    """

    def __init__(self, data: bytes, where: str, error: type[LarqlError]) -> None:
        self.data = data
        self.position = 0
        self._where = where
        self._error = error
        self._check_utf8()

    def _check_utf8(self) -> None:
        # In slices: a decoded copy of the whole can take four times the document.
        decoder = codecs.getincrementaldecoder("utf-8")()
        view = memoryview(self.data)
        try:
            for start in range(0, len(view), _SLICE):
                decoder.decode(view[start : start + _SLICE], start + _SLICE >= len(view))
        except UnicodeDecodeError:
            raise self._error(f"{self._where} is not UTF-8") from None

    def fail(self, expected: str) -> NoReturn:
        """Refuse what stands at the current position."""
        found = self.data[self.position : self.position + 12].decode("utf-8", "replace")
        raise self._error(
            f"{self._where} is not the JSON expected: at byte {self.position} found "
            f"{shown(found) if found else 'its end'}, expected {expected}"
        )

    def peek(self) -> bytes:
        """Return the next byte after white space without taking it; empty at the end."""
        match = _SPACE.match(self.data, self.position)
        self.position = match.end() if match else self.position
        return self.data[self.position : self.position + 1]

    def take(self, byte: bytes) -> None:
        """Take one structural byte."""
        if self.peek() != byte:
            self.fail(f"'{byte.decode()}'")
        self.position += 1

    def match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Take what ``pattern`` matches here, if it does."""
        found = pattern.match(self.data, self.position)
        if found:
            self.position = found.end()
        return found

    def string(self, limit: int) -> str:
        """Take a string of at most ``limit`` bytes as written."""
        if self.peek() != b'"':
            self.fail("a string")
        # The end position bounds the time as well: escapes match at 40 MB/s only.
        found = _STRING.match(self.data, self.position, self.position + limit + 2)
        if found is None:
            self.fail(f"a string of at most {limit} bytes, closed, with valid escapes")
        start, end = found.span()
        self.position = end
        text = self.data[start + 1 : end - 1]
        if b"\\" not in text:
            return text.decode("utf-8")
        value: str = json.loads(self.data[start:end])
        if any("\ud800" <= character <= "\udfff" for character in value):
            self.position = start
            self.fail("a string without half a surrogate pair")
        return value

    def members(self, key_limit: int, count_limit: int) -> Iterator[str]:
        """Take an object, yielding each key; the caller takes the value before the next step.

        Parameters
        ----------
        key_limit : int
            Bytes of a key, as written.
        count_limit : int
            Number of members.

        Raises
        ------
        LarqlError
            Also when a key appears twice or there are too many members.
        """
        self.take(b"{")
        if self.peek() == b"}":
            self.position += 1
            return
        seen: set[str] = set()
        while True:
            key = self.string(key_limit)
            if key in seen:
                raise self._error(
                    f"{self._where} has duplicate key {shown(key)}; expected each key once"
                )
            seen.add(key)
            if len(seen) > count_limit:
                raise self._error(f"{self._where} has more than {count_limit} members")
            self.take(b":")
            yield key
            if self.peek() != b",":
                self.take(b"}")
                return
            self.position += 1

    def skip(self) -> None:
        """Take one value of any kind, in constant memory, without nesting limits of its own."""
        open_brackets = bytearray()
        for _ in range(_SKIPPED_VALUES):
            byte = self.peek()
            if byte in (b"{", b"["):
                open_brackets += byte
                self.position += 1
                if self.peek() not in (b"}", b"]"):
                    self._key(open_brackets)
                    continue
            elif byte == b'"':
                if self.match(_STRING) is None:
                    self.fail("a string, closed, with valid escapes")
            elif self.match(_SCALAR) is None:
                self.fail("a value")
            while open_brackets and self.peek() != b",":
                self.take(b"}" if open_brackets[-1:] == b"{" else b"]")
                del open_brackets[-1]
            if not open_brackets:
                return
            self.position += 1
            self._key(open_brackets)
        self.fail(f"at most {_SKIPPED_VALUES} values here")

    def _key(self, open_brackets: bytearray) -> None:
        if open_brackets[-1:] != b"{":
            return
        if self.peek() != b'"' or self.match(_STRING) is None:
            self.fail("a key")
        self.take(b":")

    def end(self) -> None:
        """Check that only white space follows."""
        if self.peek():
            self.fail("nothing more")
