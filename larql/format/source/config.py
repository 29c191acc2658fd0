"""Reading a checkpoint's configuration so that no key that changes the computation is missed.

A family takes the keys that it understands, names those that change nothing, and states which
values of a key ask for nothing. What is left over after that is an error by name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from larql.errors import CompileError

__all__ = ["ConfigReader", "KeyVerdict"]

_MISSING = object()


@dataclass(frozen=True)
class KeyVerdict:
    """What became of one configuration key.

    ``consumed``, declared ``irrelevant``, ``blocking`` (nobody judged it, or it was refused), or
    ``unreached`` where judging ended before.
    """

    key: str
    verdict: Literal["consumed", "irrelevant", "blocking", "unreached"]


class ConfigReader:
    """Typed access to a configuration mapping that remembers which keys were judged.

    Parameters
    ----------
    config : mapping
        Key to decoded value.
    where : str
        The file, for error texts.
    prefix : str
        Prepended to a key in error texts and in the verdicts.
    """

    def __init__(self, config: Mapping[str, object], where: str, prefix: str = "") -> None:
        self._config = config
        self.where = where
        self._prefix = prefix
        self._verdicts: dict[str, Literal["consumed", "irrelevant", "blocking"]] = {}
        self._children: dict[str, ConfigReader] = {}
        self._inherited: dict[str, object] = {}

    def failure(self, key: str, problem: str) -> CompileError:
        """Return the error for a key, which ``problem`` goes on about."""
        self._verdicts[key] = "blocking"
        return CompileError(f"{self.where}: `{self._prefix}{key}` {problem}")

    def _take(self, key: str, default: object) -> object:
        self._verdicts[key] = "consumed"
        value = self._value(key)
        if value is None:
            if default is _MISSING:
                raise self.failure(key, "is missing; the model cannot be judged without it")
            return default
        return value

    def refuse_null(self, key: str, meaning: str) -> None:
        """Refuse a key that is present and null where its absence means a default.

        Raises
        ------
        CompileError
            Saying what null would mean.
        """
        if key in self._config and self._config[key] is None:
            raise self.failure(key, f"is null, {meaning}")

    def has(self, key: str) -> bool:
        """Return whether a key is present with a value other than null."""
        return self._value(key) is not None

    def states(self, key: str, value: object) -> bool:
        """Return whether a key has just this value, and take it if so."""
        found = self._value(key)
        if type(found) is not type(value) or found != value:
            return False
        self._verdicts[key] = "consumed"
        return True

    def inherit(self, key: str, value: object) -> None:
        """Take over a key from around this object, where it says nothing itself."""
        self._inherited[key] = value

    def _value(self, key: str) -> object:
        value = self._config.get(key)
        return self._inherited.get(key) if value is None else value

    def count(self, key: str, default: object = _MISSING, *, least: int = 1) -> int:
        """Take an integer of at least ``least``; a float with an integer value is accepted."""
        value = self._take(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.failure(key, f"is {value!r:.60}, expected an integer of at least {least}")
        return value

    def optional_count(self, key: str) -> int | None:
        """Take a positive integer, or None where the key is absent or null."""
        if not self.has(key):
            self._note_absent(key)
            return None
        return self.count(key)

    def _note_absent(self, key: str) -> None:
        self._verdicts[key] = "consumed"

    def nullable_count(self, key: str, default: int | None) -> int | None:
        """Take a positive integer: ``default`` where the key is absent, None where it is null."""
        if self.has(key):
            return self.count(key)
        self._note_absent(key)
        return None if key in self._config else default

    def nullable_number(self, key: str, default: float | None) -> float | None:
        """Take a finite positive number: ``default`` where it is absent, None where it is null."""
        if self.has(key):
            return self.number(key)
        self._note_absent(key)
        return None if key in self._config else default

    def number(self, key: str, default: object = _MISSING) -> float:
        """Take a finite positive number."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.failure(key, f"is {value!r:.60}, expected a number")
        if not 0 < value <= sys.float_info.max:
            raise self.failure(key, f"is {value!r:.60}, expected a finite number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Take a finite positive number, or None where the key is absent or null."""
        if not self.has(key):
            self._note_absent(key)
            return None
        return self.number(key)

    def flag(self, key: str, default: object = _MISSING) -> bool:
        """Take true or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.failure(key, f"is {value!r:.60}, expected true or false")
        return value

    def text(self, key: str, default: object = _MISSING) -> str:
        """Take a string."""
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.failure(key, f"is {value!r:.60}, expected a string")
        return value

    def choice(self, key: str, choices: Mapping[str, str], default: object = _MISSING) -> str:
        """Take a string and translate it; one that is not among ``choices`` is refused by name."""
        value = self.text(key, default)
        if value not in choices:
            known = ", ".join(sorted(choices))
            raise self.failure(key, f"is {value!r:.60}, which this build does not know ({known})")
        return choices[value]

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Take an array of strings, or None where the key is absent."""
        if not self.has(key):
            self._note_absent(key)
            return None
        value = self._take(key, _MISSING)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self.failure(key, "is not an array of strings")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Take an array of finite numbers above 0."""
        value = self._take(key, _MISSING)
        if not isinstance(value, list | tuple) or not all(
            isinstance(v, int | float) and not isinstance(v, bool) and 0 < v <= sys.float_info.max
            for v in value
        ):
            raise self.failure(key, "is not an array of finite numbers above 0")
        return tuple(float(v) for v in value)

    def counts(self, key: str, *, least: int = 0) -> tuple[int, ...] | None:
        """Take an array of integers of at least ``least``, or None where the key is absent."""
        if not self.has(key):
            self._note_absent(key)
            return None
        value = self._take(key, _MISSING)
        if not isinstance(value, list | tuple) or not all(
            isinstance(v, int) and not isinstance(v, bool) and v >= least for v in value
        ):
            raise self.failure(key, f"is not an array of integers of at least {least}")
        return tuple(value)

    def counts_by_layer(self, key: str, layers: int, default: object = _MISSING) -> tuple[int, ...]:
        """Take one integer of at least 0 for all layers, or an array with one for each."""
        value = self._take(key, default)
        if not isinstance(value, list | tuple):
            return (self.count(key, default, least=0),) * layers
        found = self.counts(key) or ()
        if len(found) != layers:
            raise self.failure(key, f"has {len(found)} entries, expected {layers}, one for a layer")
        return found

    def flags_by_layer(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """Take an array with true or false for each layer, or None where the key is absent."""
        if not self.has(key):
            self._note_absent(key)
            return None
        value = self._take(key, _MISSING)
        if not isinstance(value, list | tuple) or not all(isinstance(v, bool) for v in value):
            raise self.failure(key, "is not an array of true and false")
        if len(value) != layers:
            raise self.failure(key, f"has {len(value)} entries, expected {layers}, one for a layer")
        return tuple(value)

    def limits(self, key: str) -> tuple[float, float | None]:
        """Take an array of two bounds, none below 0; a missing or infinite upper one is None.

        Infinity is written as such, or as ``{"__float__": "Infinity"}``.
        """
        if not self.has(key):
            self._note_absent(key)
            return 0.0, None
        value = self._take(key, _MISSING)
        found = [
            v.get("__float__") if isinstance(v, Mapping) else v
            for v in (value if isinstance(value, list | tuple) else ())
        ]
        least, most = found if len(found) == 2 else (None, None)
        if most in ("Infinity", math.inf):
            most = sys.float_info.max
        if not all(
            isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= sys.float_info.max
            for v in (least, most)
        ):
            raise self.failure(key, f"is {value!r:.60}, expected two bounds, neither below 0")
        least, most = float(cast("float", least)), float(cast("float", most))
        if least > most:
            raise self.failure(key, f"is {value!r:.60}, whose first bound is above the second")
        return least, None if most == sys.float_info.max else most

    def child(self, key: str) -> ConfigReader | None:
        """Take a nested object as a reader of its own, or None where the key is absent."""
        if not self.has(key):
            self._note_absent(key)
            return None
        if key in self._children:
            return self._children[key]
        value = self._take(key, _MISSING)
        if not isinstance(value, Mapping):
            raise self.failure(key, f"is {value!r:.60}, expected an object")
        reader = ConfigReader(value, self.where, f"{self._prefix}{key}.")
        self._children[key] = reader
        return reader

    def irrelevant(self, *keys: str) -> None:
        """State that keys do not change what the model computes."""
        for key in keys:
            self._verdicts.setdefault(key, "irrelevant")

    def neutral(self, key: str, *values: object) -> None:
        """State the only values of a key that ask for nothing; any other is refused by name."""
        self._verdicts[key] = "consumed"
        value = self._config.get(key)
        if value is None:
            return
        if not any(type(value) is type(v) and value == v for v in values) and not (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and any(value == v for v in values if not isinstance(v, bool))
        ):
            shown = " or ".join(repr(v) for v in values) or "null"
            raise self.failure(
                key, f"is {value!r:.60}, a computation this build does not compile (only {shown})"
            )

    def contradiction(self, first: str, second: str, a: object, b: object) -> CompileError:
        """Return the error for two keys that state different values of one thing."""
        return self.failure(
            first, f"is {a!r} but `{self._prefix}{second}` is {b!r}; they must agree"
        )

    def judged(self, key: str) -> bool:
        """Return whether a key has been taken or judged."""
        return key in self._verdicts

    def leftover(self) -> list[str]:
        """Return the keys that nobody judged and that are not null, children included."""
        own = [
            f"{self._prefix}{key}"
            for key in self._config
            if key not in self._verdicts and self._config.get(key) is not None
        ]
        return own + [key for child in self._children.values() for key in child.leftover()]

    def verdicts(self) -> list[KeyVerdict]:
        """Return the verdict on every key that is present, in file order, children included.

        A key that nobody judged is blocking, unless it is null.
        """
        found = [
            KeyVerdict(
                f"{self._prefix}{key}",
                self._verdicts.get(key, "blocking" if self.has(key) else "irrelevant"),
            )
            for key in self._config
        ]
        return found + [
            verdict for child in self._children.values() for verdict in child.verdicts()
        ]

    def finish(self) -> None:
        """Refuse if any key was left unjudged.

        Raises
        ------
        CompileError
            Naming the keys.
        """
        left = self.leftover()
        if left:
            names = ", ".join(f"`{key}`" for key in left[:8])
            more = f" and {len(left) - 8} more" if len(left) > 8 else ""
            raise CompileError(
                f"{self.where}: {names}{more}: unknown to this family and may change what the "
                f"model computes; remove it if it does not, or use a larql that knows it"
            )
