"""Reading a checkpoint's configuration so that no key that changes the computation is missed.

A family takes the keys that it understands, names those that change nothing, and states which
values of a key ask for nothing. What is left over after that is an error by name. A value that is
refused is recorded, and a stand-in is returned for it, so that the keys after it are judged too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from larql.format.source.problems import Problem, Problems

__all__ = ["ConfigReader", "KeyVerdict"]

_MISSING = object()
_MOST = 2**63 - 1  # what a file's header can count
_FLAGS: tuple[object, ...] = ("false", "true", 0, 1, "False", "True")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class KeyVerdict:
    """What became of one configuration key.

    ``consumed``, declared ``irrelevant``, or ``blocking``: nobody judged it, or it was refused.
    """

    key: str
    verdict: Literal["consumed", "irrelevant", "blocking"]


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
    problems : Problems or None
        Where refusals are recorded; None: in a collection of its own.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        where: str,
        prefix: str = "",
        problems: Problems | None = None,
    ) -> None:
        self._config = config
        self.where = where
        self.problems = Problems() if problems is None else problems
        self._prefix = prefix
        self._verdicts: dict[str, Literal["consumed", "irrelevant", "blocking"]] = {}
        self._children: dict[str, ConfigReader] = {}
        self._inherited: dict[str, object] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._harmless: Mapping[str, tuple[object, ...]] = {}
        self._repeats: list[tuple[tuple[str, ...], Callable[[object], object]]] = []

    def refuse(self, key: str, problem: str, *given: str) -> None:
        """Record that a key keeps the checkpoint from being compiled.

        Parameters
        ----------
        key : str
        problem : str
            What goes on about it.
        given : str
            Keys that this rests on; where one of them was refused itself, nothing is recorded.
        """
        key = self.stated(key)
        if any(self.problems.refused(f"{self._prefix}{self.stated(k)}") for k in given):
            return
        self._verdicts[key] = "blocking"
        name = f"{self._prefix}{key}"
        self.problems.add(Problem("key", name, f"{self.where}: `{name}` {problem}"))

    def contradiction(self, first: str, second: str, a: object, b: object) -> None:
        """Record that two keys state different values of one thing; the first is gone on with."""
        self.refuse(
            first, f"is {a!r} but `{self._prefix}{second}` is {b!r}; they must agree", second
        )
        if self._config.get(second) is not None:
            self._verdicts[second] = "blocking"

    def _unfit(self, key: str, problem: str, stand_in: _Value, *, decides: bool = False) -> _Value:
        """Record a refusal, and return what is gone on with.

        Where the value ``decides`` which tensors there should be, they are not judged any more.
        """
        self.refuse(key, problem)
        if decides:
            self.problems.assume(f"{self._prefix}{self.stated(key)}")
        return stand_in

    def _judge(self, key: str, verdict: Literal["consumed", "irrelevant"]) -> None:
        """Note a verdict on a key and on its other names; what is blocking stays so."""
        for name in self._names.get(key, (key,)):
            if self._verdicts.get(name) != "blocking":
                self._verdicts[name] = verdict

    def _take(self, key: str, default: object) -> object:
        """Return a key's value or the default; what is missing without one is recorded."""
        self._judge(key, "consumed")
        value = self._value(key)
        if value is not None:
            return value
        if default is _MISSING:
            self.refuse(key, "is missing; the model cannot be judged without it")
        return default

    def refuse_null(self, key: str, meaning: str) -> None:
        """Refuse a key that is present and null where its absence means a default.

        Parameters
        ----------
        key : str
        meaning : str
            What null would mean.
        """
        if key in self._config and self._config[key] is None:
            self.refuse(key, f"is null, {meaning}")

    def same(self, *keys: str, meaning: Callable[[object], object] | None = None) -> None:
        """State that several keys are names of one thing.

        Whichever of them is stated is what any of them is read as. Two that state different values
        are refused, naming both.

        Parameters
        ----------
        keys : str
        meaning : callable or None
            What a value means, where several are spellings of one.
        """
        names = [key for key in keys if self._config.get(key) is not None]
        for other in names[1:]:
            self._hold(names[0], other, meaning or _itself)
        for key in keys:
            self._names[key] = keys

    def repeats(self, *keys: str, meaning: Callable[[object], object] | None = None) -> None:
        """State that several keys are names of one thing, of which a family reads one.

        Another that nobody judges must say the same as one that was read; alone it stays unjudged.
        """
        self._repeats.append((keys, meaning or _itself))

    def harmless(self, values: Mapping[str, tuple[object, ...]]) -> None:
        """State of keys which values ask for nothing, where a family does not judge them itself."""
        self._harmless = values

    def _hold(self, key: str, other: str, meaning: Callable[[object], object]) -> None:
        a, b = self._config[key], self._config[other]
        if not _alike(meaning(a), meaning(b)):
            self.contradiction(key, other, a, b)

    def _judge_repeats(self) -> None:
        for keys, meaning in self._repeats:
            names = [key for key in keys if self._config.get(key) is not None]
            read = next((key for key in names if self._verdicts.get(key) == "consumed"), None)
            for other in names:
                if read is not None and other not in self._verdicts:
                    self._verdicts[other] = "irrelevant"
                    self._hold(read, other, meaning)

    def agree(self, key: str, other: str, value: object) -> None:
        """State that a key repeats what another one says, or what follows from it."""
        self._judge(key, "consumed")
        stated = self._value(key)
        if stated is not None and not _alike(stated, value):
            self.contradiction(self.stated(key), other, stated, value)

    def stated(self, key: str) -> str:
        """Return the name by which a key goes here that may have several."""
        names = self._names.get(key, ())
        return next((name for name in names if self._config.get(name) is not None), key)

    def has(self, key: str) -> bool:
        """Return whether a key is present with a value other than null."""
        return self._value(key) is not None

    def states(self, key: str, value: object) -> bool:
        """Return whether a key has just this value, and take it if so."""
        found = self._value(key)
        if type(found) is not type(value) or found != value:
            return False
        self._judge(key, "consumed")
        return True

    def inherit(self, key: str, value: object) -> None:
        """Take over a key from around this object, where it says nothing itself."""
        self._inherited[key] = value

    def _value(self, key: str) -> object:
        value = self._config.get(self.stated(key))
        return self._inherited.get(key) if value is None else value

    def count(self, key: str, default: object = _MISSING, *, least: int = 1) -> int:
        """Take an integer of at least ``least``; a float with an integer value is accepted."""
        value = self._take(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST:
            return value
        if value is not _MISSING:
            most = "" if not isinstance(value, int) or value < least else f" and at most {_MOST}"
            self.refuse(key, f"is {value!r:.60}, expected an integer of at least {least}{most}")
        if isinstance(value, str) and value.isdecimal() and least <= int(value) <= _MOST:
            return int(value)
        self.problems.assume(f"{self._prefix}{self.stated(key)}")
        return max(default, least) if isinstance(default, int) else least

    def optional_count(self, key: str) -> int | None:
        """Take a positive integer, or None where the key is absent or null."""
        if not self.has(key):
            self._note_absent(key)
            return None
        return self.count(key)

    def _note_absent(self, key: str) -> None:
        self._judge(key, "consumed")

    def _is_null(self, key: str) -> bool:
        return any(name in self._config for name in self._names.get(key, (key,)))

    def nullable_count(self, key: str, default: int | None) -> int | None:
        """Take a positive integer: ``default`` where the key is absent, None where it is null."""
        if self.has(key):
            return self.count(key)
        self._note_absent(key)
        return None if self._is_null(key) else default

    def nullable_number(self, key: str, default: float | None) -> float | None:
        """Take a finite positive number: ``default`` where it is absent, None where it is null."""
        if self.has(key):
            return self.number(key)
        self._note_absent(key)
        return None if self._is_null(key) else default

    def number(self, key: str, default: object = _MISSING) -> float:
        """Take a finite positive number."""
        value = self._take(key, default)
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if numeric and 0 < cast("float", value) <= sys.float_info.max:
            return float(cast("float", value))
        expected = "a finite number above 0" if numeric else "a number"
        if value is not _MISSING:
            self.refuse(key, f"is {value!r:.60}, expected {expected}")
        return float(default) if isinstance(default, int | float) and default > 0 else 1.0

    def optional_number(self, key: str) -> float | None:
        """Take a finite positive number, or None where the key is absent or null."""
        if not self.has(key):
            self._note_absent(key)
            return None
        return self.number(key)

    def flag(self, key: str, default: object = _MISSING) -> bool:
        """Take true or false."""
        value = self._take(key, default)
        if isinstance(value, bool):
            return value
        if value is not _MISSING:
            self.refuse(key, f"is {value!r:.60}, expected true or false")
        if value in _FLAGS:
            return _FLAGS.index(value) % 2 == 1
        self.problems.assume(f"{self._prefix}{self.stated(key)}")
        return default is True

    def text(self, key: str, default: object = _MISSING) -> str:
        """Take a string."""
        value = self._take(key, default)
        if isinstance(value, str):
            return value
        if value is not _MISSING:
            self.refuse(key, f"is {value!r:.60}, expected a string")
        return default if isinstance(default, str) else ""

    def choice(self, key: str, choices: Mapping[str, str], default: object = _MISSING) -> str:
        """Take a string and translate it; one that is not among ``choices`` is refused by name."""
        value = self.text(key, default)
        if value in choices:
            return choices[value]
        known = ", ".join(sorted(choices))
        self.refuse(key, f"is {value!r:.60}, which this build does not know ({known})")
        usual = default if isinstance(default, str) and default in choices else next(iter(choices))
        return choices[usual]

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Take an array of strings, or None where the key is absent."""
        if not self.has(key):
            self._note_absent(key)
            return None
        value = self._take(key, _MISSING)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            return self._unfit(key, "is not an array of strings", None, decides=True)
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Take an array of finite numbers above 0."""
        value = self._take(key, _MISSING)
        if not isinstance(value, list | tuple) or not all(
            isinstance(v, int | float) and not isinstance(v, bool) and 0 < v <= sys.float_info.max
            for v in value
        ):
            if value is not _MISSING:
                self.refuse(key, "is not an array of finite numbers above 0")
            return ()
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
            problem = f"is not an array of integers of at least {least}"
            return self._unfit(key, problem, None, decides=True)
        return tuple(value)

    def counts_by_layer(self, key: str, layers: int, default: object = _MISSING) -> tuple[int, ...]:
        """Take one integer of at least 0 for all layers, or an array with one for each."""
        value = self._take(key, default)
        if not isinstance(value, list | tuple):
            return (self.count(key, default, least=0),) * layers
        found = self.counts(key) or ()
        if len(found) != layers:
            problem = f"has {len(found)} entries, expected {layers}, one for a layer"
            return self._unfit(key, problem, (1,) * layers, decides=True)
        return found

    def flags_by_layer(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """Take an array with true or false for each layer, or None where the key is absent."""
        if not self.has(key):
            self._note_absent(key)
            return None
        value = self._take(key, _MISSING)
        if not isinstance(value, list | tuple) or not all(isinstance(v, bool) for v in value):
            return self._unfit(key, "is not an array of true and false", None, decides=True)
        if len(value) != layers:
            problem = f"has {len(value)} entries, expected {layers}, one for a layer"
            return self._unfit(key, problem, None, decides=True)
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
            problem = f"is {value!r:.60}, expected two bounds, neither below 0"
            return self._unfit(key, problem, (0.0, None))
        least, most = float(cast("float", least)), float(cast("float", most))
        if least > most:
            problem = f"is {value!r:.60}, whose first bound is above the second"
            return self._unfit(key, problem, (0.0, None))
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
            return self._unfit(key, f"is {value!r:.60}, expected an object", None, decides=True)
        reader = ConfigReader(value, self.where, f"{self._prefix}{key}.", self.problems)
        self._children[key] = reader
        return reader

    def irrelevant(self, *keys: str) -> None:
        """State that keys do not change what the model computes."""
        for key in keys:
            self._verdicts.setdefault(key, "irrelevant")

    def neutral(self, key: str, *values: object) -> None:
        """State the only values of a key that ask for nothing; any other is refused by name."""
        self._judge(key, "consumed")
        value = self._config.get(self.stated(key))
        if value is None or any(_alike(value, v) for v in values):
            return
        shown = " or ".join(repr(v) for v in values) or "null"
        self.refuse(
            key, f"is {value!r:.60}, a computation this build does not compile (only {shown})"
        )

    def refuse_rest(self) -> None:
        """Let every key that nobody judged be blocking: it belongs to what was refused here."""
        for key in self._config:
            self._verdicts.setdefault(key, "blocking")

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
        """Refuse every key that was left unjudged."""
        for reader in (self, *self._children.values()):
            reader._judge_repeats()
            for key, values in reader._harmless.items():
                if any(_alike(reader._config.get(key), value) for value in values):
                    reader.irrelevant(key)
        for key in self.leftover():
            text = (
                f"{self.where}: `{key}`: unknown to this family and may change what the model "
                f"computes; remove it if it does not, or use a larql that knows it"
            )
            self.problems.add(Problem("key", key, text))


def _itself(value: object) -> object:
    return value


def _alike(a: object, b: object) -> bool:
    """Return whether two values are equal and of one kind; 1 and 1.0 are, 1 and true are not."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b
