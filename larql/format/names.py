"""Names that come from files and become paths: one rule for all of them."""

from __future__ import annotations

from larql.errors import LarqlError

__all__ = ["bank_key", "check_relative_name", "component_beside", "layer_text"]

_MODEL = "target"


def component_beside(name: str) -> str | None:
    """Return the component of an operand or object where it is another than the model proper.

    The model proper is left out of the names of files and keys, and of what is said of a place.
    """
    component = name.partition(".")[0]
    return None if component == _MODEL else component


def bank_key(layer: int, component: str | None = None) -> str:
    """Return what a layer's banks are called: ``layer_007``, ``mtp.layer_000``.

    Parameters
    ----------
    layer : int
    component : str or None
        None: the model proper.
    """
    key = f"layer_{layer:03d}"
    return key if component is None else f"{component}.{key}"


def layer_text(layer: int, component: str | None = None) -> str:
    """Return a layer in words, with its component where that is not the model proper."""
    return f"layer {layer}" if component is None else f"component {component}, layer {layer}"


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
