"""Names that come from files and become paths: one rule for all of them."""

from __future__ import annotations

from larql.errors import LarqlError

__all__ = ["check_relative_name"]


def check_relative_name(name: object, where: str, error: type[LarqlError]) -> str:
    """Return ``name`` if it is a plain relative path with forward slashes, else raise.

    Parameters
    ----------
    name : object
        The decoded JSON value that claims to be a file name.
    where : str
        What carried the name, for the error text.
    error : type of LarqlError
        The class to raise.

    Raises
    ------
    LarqlError
        Of class ``error``: not a string, empty, absolute, with ``..``, ``.`` or empty parts, a
        backslash, a NUL or another control character.
    """
    if not isinstance(name, str):
        raise error(f"{where}: file name {name!r} is not a string")
    if not name:
        raise error(f"{where}: empty file name; expected a relative path")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise error(f"{where}: file name {name!r} holds a control character")
    if "\\" in name:
        raise error(f"{where}: file name {name!r} holds a backslash; expected forward slashes")
    if name.startswith("/"):
        raise error(f"{where}: file name {name!r} is absolute; expected one inside the directory")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise error(f"{where}: file name {name!r} leaves its directory or is not normal")
    return name
