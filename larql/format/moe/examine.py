"""The state of each operand of a container, from its headers and tables; no weight is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from larql.errors import ContainerError, LarqlError, UnsupportedRefusal
from larql.format.banks import find_schema, other_meaning, runs_of
from larql.format.container import Container
from larql.format.generation import Generation
from larql.format.index import Representation
from larql.format.lyrw.codes import (
    encoding_of,
    format_code,
    format_text,
    packing_of,
    packing_text,
)
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema
from larql.format.lyrw.v2 import BankFile
from larql.format.moe.held import Held, cut, registry_of
from larql.format.moe.profiles import Selection
from larql.format.moe.states import Absent, Damaged, Executable, Mismatch, State, Unsupported, Why
from larql.format.moe.traversal import Segment
from larql.format.moe.views import DIRECT, ColumnSlice, View
from larql.format.operations.contract import OperandContract
from larql.format.untrusted import exists

__all__ = ["Examiner"]


class Examiner:
    """Looks operands up under one selection.

    Parameters
    ----------
    container : Container
    selection : Selection
    """

    def __init__(self, container: Container, selection: Selection) -> None:
        self.container = container
        self.selection = selection
        self._held: dict[tuple[tuple[str, ...], int, int], Held] = {}

    def operand(self, contract: OperandContract, value: Representation | None = None) -> State:
        """Return the state of an operand outside of banks.

        Parameters
        ----------
        contract : OperandContract
        value : Representation or None
            One of its representations; None: the one that the selection binds.
        """
        name = contract.name
        if self.selection.omitted(name):
            return Absent(Why.OMITTED, self._omitted_by())
        value = value or self.selection.bound.get(name)
        if value is None:
            return self._nowhere(name, "the index has no representation of it")
        shape = self._shape(value, contract.shape)
        return shape or self.stored(value)

    def stored(self, value: Representation) -> State:
        """Return the state of a representation in a file of tensors, against its own description.

        A representation in a file of banks is looked up in all of its entries.
        """
        if self._holds_banks(value):
            states = self.entries(value, (value.segment,), value.shape[0])
            bad = [state for state in states.values() if not isinstance(state, Executable)]
            return bad[0] if bad else Executable(value.fidelity)
        problem = self._file(value.segment, value.operand)
        if problem is not None:
            return problem
        path = self.container.path / value.segment
        try:
            segment = self.container.segment(value.segment)
        except LarqlError as error:
            return _unreadable(error)
        if value.tensor not in segment.header.entries:
            return self._nowhere(value.operand, f"{path} holds no tensor {value.tensor}")
        try:
            segment.check(value.tensor, value.encoding, value.shape)
        except ContainerError as error:
            return Mismatch(str(error))
        return Executable(value.fidelity)

    def entries(
        self,
        value: Representation,
        files: Sequence[str],
        population: int,
        bounds: Collection[int] = (),
    ) -> dict[Segment, State]:
        """Return the state of an operand of experts in each segment of its bank.

        Parameters
        ----------
        value : Representation
        files : sequence of str
            Files that hold the bank, as the index lists them.
        population : int
            Entries that are required.
        bounds : collection of int
            Where segments are cut further, so that operands of one bank can be compared.
        """
        if self.container.generation is Generation.VINDEX2:
            return self._apart(value, population, bounds)
        number = value.tensor.partition("/")[0]
        if not (number.isascii() and number.isdigit()):
            text = f"its regions are named {value.tensor!r:.60}, expected bank/schema"
            return {Segment(0, population): self._nowhere(value.operand, text)}
        bank_id = int(number)
        held = self.held(files, bank_id, population, value.operand)
        expected = (value.shape[1] if len(value.shape) == 3 else 1, value.shape[-1])
        found: dict[Segment, State] = {}
        for segment in cut(held.registry, bounds or self.bounds([value.operand])):
            if self._leaves_out(value.operand, segment):
                found[segment] = Absent(Why.OMITTED, self._omitted_by())
                continue
            file = held.owner(segment)
            if file is None:
                found[segment] = self.not_held(held, segment, value.operand)
                continue
            try:
                _bank, schema = find_schema(file, value)
            except ContainerError as error:
                found[segment] = self._nowhere(value.operand, str(error))
                continue
            other = other_meaning(file, schema, value.operand)
            if other is not None:
                found[segment] = Mismatch(f"{file.path}: {other}")
                continue
            found[segment] = self.region(
                file, bank_id, segment, schema, expected, value.fidelity, value
            )
        return found

    def _apart(
        self, value: Representation, population: int, bounds: Collection[int]
    ) -> dict[Segment, State]:
        """Return the state of an operand whose entries a layer file of VINDEX2 has, or a shard."""
        problem = self._file(value.segment, value.operand)
        if problem is not None:
            return {Segment(0, population): problem}
        try:
            present = [file is not None for file in self.container.entries(value).files]
        except LarqlError as error:
            return {Segment(0, population): _unreadable(error)}
        here = [BankSegment(0, 0, first, end - first) for first, end in runs_of(present)]
        found: dict[Segment, State] = {}
        for segment in cut(registry_of(here, population, False), bounds):
            gone = f"{value.segment} is of a shard without {segment.text}"
            held = all(present[segment.first : segment.end])
            found[segment] = Executable(value.fidelity) if held else Absent(Why.NOWHERE, gone, True)
        return found

    def region(
        self,
        file: BankFile,
        bank_id: int,
        segment: Segment,
        schema: RegionSchema,
        expected: tuple[int, int],
        fidelity: str,
        value: Representation | None = None,
    ) -> State:
        """Return the state of the regions of one schema in one segment of a bank.

        Parameters
        ----------
        file : BankFile
        bank_id : int
        segment : Segment
        schema : RegionSchema
        expected : (int, int)
            Rows and columns that the operand has.
        fidelity : str
        value : Representation or None
            What the index says of them; None: nothing, and stored columns may pad the operand's.
        """
        encoding = encoding_of(schema.format)
        if encoding is None or schema.packing != packing_of(encoding):
            return Unsupported(
                f"{file.path}: {schema.label} is {format_text(schema.format)} packed as "
                f"{packing_text(schema.packing)}"
            )
        if value is not None and schema.format != format_code(value.encoding):
            return Mismatch(
                f"{file.path}: {schema.label} is {encoding.name}, the index says "
                f"{value.encoding.name}"
            )
        view: View = DIRECT
        stored = (schema.rows, schema.cols)
        if schema.cols > expected[1] and (value is None or schema.cols == value.stored_columns):
            view = ColumnSlice(0, expected[1])
            stored = (schema.rows, expected[1])
        if stored != expected:
            return Mismatch(
                f"{file.path}: {schema.label} is {list(stored)}, expected {list(expected)}"
            )
        return _misplaced(file, bank_id, segment, schema) or Executable(fidelity, view)

    def held(self, files: Sequence[str], bank_id: int, population: int, what: str) -> Held:
        """Open the files of a bank and return which segments are here."""
        key = (tuple(files), bank_id, population)
        if key not in self._held:
            self._held[key] = self._open(files, bank_id, population, what)
        return self._held[key]

    def _open(self, files: Sequence[str], bank_id: int, population: int, what: str) -> Held:
        problems: dict[int, State] = {}
        here: list[tuple[BankSegment, BankFile]] = []
        bank: Bank | None = None
        several = len(files) > 1
        for place, name in enumerate(files):
            problem = self._file(name, what, banks=True)
            if problem is None:
                try:
                    file = self.container.bank_file(name)
                except LarqlError as error:
                    problem = _unreadable(error)
            if problem is not None:
                problems[place] = problem
                continue
            found = file.tables.bank(bank_id)
            if found is None:
                problems[place] = self._nowhere(what, f"{file.path} has no bank {bank_id}")
                continue
            if found.num_entries != population or (bank is not None and found != bank):
                problems[place] = Mismatch(
                    f"{file.path}: bank {bank_id} is of {found.num_entries} entries, expected "
                    f"{population} and the regions of the other files"
                )
                continue
            bank = found
            several = several or file.tables.one_of_several
            here += [(s, file) for s in file.tables.segments if s.bank_id == bank_id]
        registry = registry_of([segment for segment, _ in here], population, several)
        owners = {
            Segment(s.first_entry, s.end, s.segment_index if several else None): file
            for s, file in here
        }
        return Held(registry, owners, problems, bank)

    def not_held(self, held: Held, segment: Segment, operand: str) -> State:
        """Return the state of an operand in a segment that no file here holds."""
        problem = held.problem(segment)
        if isinstance(problem, Absent) or problem is None:
            detail = f"no file of its bank holds {segment.text}"
            if problem is not None:
                detail = problem.detail
            # Files that are each one of several say themselves that others hold the rest.
            partial = problem is None and segment.index is not None
            remote = partial or any(
                s.covers(operand)
                and (
                    s.entries is None
                    or (s.entries[0] <= segment.first and segment.end <= s.entries[1])
                )
                for s in self.selection.remote
            )
            return Absent(Why.NOWHERE, detail, remote)
        return problem

    def bounds(self, operands: Iterable[str]) -> frozenset[int]:
        """Return the entries at which the profile begins or ends to speak of some operands."""
        spoken = (*self.selection.omits, *self.selection.remote)
        names = list(operands)
        return frozenset(
            bound
            for selector in spoken
            for bound in selector.entries or ()
            if any(selector.covers(name) for name in names)
        )

    def _leaves_out(self, operand: str, segment: Segment) -> bool:
        return self.selection.omitted(operand) or any(
            first <= segment.first and segment.end <= end
            for first, end in self.selection.omitted_entries(operand)
        )

    def _omitted_by(self) -> str:
        return f"profile {self.selection.profile} leaves it out"

    def _nowhere(self, operand: str, detail: str) -> Absent:
        return Absent(Why.NOWHERE, detail, self.selection.is_remote(operand))

    def _holds_banks(self, value: Representation) -> bool:
        try:
            return self.container.holds_bank(value)
        except UnsupportedRefusal:
            return False

    def _shape(self, value: Representation, expected: tuple[int, ...]) -> State | None:
        if value.shape == expected:
            return None
        return Mismatch(
            f"representation {value.id} has shape {list(value.shape)}, expected {list(expected)}"
        )

    def _file(self, name: str, operand: str, *, banks: bool = False) -> State | None:
        """Return what is wrong with a file as a whole, None if it can be opened.

        Of a file of banks that has another size some regions may still be where they should.
        """
        path = self.container.path / name
        try:
            self.container.index.holds_banks(name)
        except UnsupportedRefusal as error:
            return Unsupported(str(error))
        if not exists(path):
            return self._nowhere(operand, f"file {name} is not in the container")
        entry = self.container.index.files.get(name)
        try:
            size = path.stat().st_size
        except OSError as error:
            return Damaged(f"{path}: {error.strerror}")
        if entry is not None and size != entry.size and not banks:
            return Damaged(f"{path}: is {size} bytes, the index vouches for {entry.size}")
        return None


def _unreadable(error: LarqlError) -> State:
    if isinstance(error, UnsupportedRefusal):
        return Unsupported(str(error))
    return Damaged(str(error))


def _misplaced(
    file: BankFile, bank_id: int, segment: Segment, schema: RegionSchema
) -> Damaged | None:
    """Return what is wrong with where the regions of a segment lie, None if nothing is."""
    within = range(segment.first, segment.end)
    for defect in file.region_defects:
        for bank, entry, label in defect.regions:
            if bank == bank_id and entry in within and label == schema.label:
                return Damaged(f"{file.path}: {defect.message}")
    return None
