"""Loads and stores at plain addresses, for kernels whose operands are mapped bytes.

No load assumes an alignment: a weight may start anywhere in a file. Addresses are int64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.jit import cgutils, device, instruction, types
from larql.kernels.vector import F32, LANES

__all__ = [
    "address_of",
    "call_kernel",
    "edges",
    "fetch_lines",
    "load",
    "load_f32",
    "load_f64",
    "load_i64",
    "load_most",
    "load_part",
    "store",
    "store_f32",
    "store_f64",
    "store_i32",
    "store_i64",
    "store_most",
    "store_part",
    "words",
]

LINE = 64  # bytes of a cache line
_SCALARS: dict[str, tuple[Any, Any]] = {
    "f32": (types.float32, ir.FloatType()),
    "f64": (types.float64, ir.DoubleType()),
    "i64": (types.int64, ir.IntType(64)),
}


def pointer(builder: Any, address: Any, element: Any) -> Any:
    """Emit the address as a pointer to `element`."""
    return builder.inttoptr(address, ir.PointerType(element))


def read(builder: Any, address: Any, element: Any) -> Any:
    """Emit an unaligned load of `element`."""
    return builder.load(pointer(builder, address, element), align=1)


def write(builder: Any, value: Any, address: Any) -> Any:
    """Emit an unaligned store of `value`."""
    return builder.store(value, pointer(builder, address, value.type), align=1)


def align_stack(builder: Any) -> None:
    """Have the function's stack frame begin at a cache line, with what the compiler spills there.

    It aligns no frame for the sake of spilled vectors alone. One that lies across two lines takes
    several times as long to come back, and where it lies depends on the caller.
    """
    byte, word = ir.IntType(8), ir.IntType(64)
    with builder.goto_entry_block():
        place = builder.alloca(byte)
        place.align = LINE
        fill = builder.module.declare_intrinsic("llvm.memset", [place.type, word])
        # Volatile, or nothing would be left of it.
        builder.call(fill, [place, byte(0), word(1), ir.IntType(1)(1)])


def offset(builder: Any, address: Any, distance: int) -> Any:
    """Emit address + distance."""
    return builder.add(address, ir.Constant(ir.IntType(64), distance)) if distance else address


def prefetch(builder: Any, address: Any) -> None:
    """Emit a hint that the cache line of `address` will be read; any address will do.

    It asks for the second-level cache, which can wait for many more lines than the first.
    """
    place = pointer(builder, address, ir.IntType(8))
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
    name = "llvm.prefetch.p0"
    found = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    builder.call(found, [place, number(0), number(2), number(1)])


def prefetch_lines(builder: Any, address: Any, size: int) -> None:
    """Emit hints that `size` bytes from `address` on will be read."""
    for line in range(0, size, LINE):
        prefetch(builder, offset(builder, address, line))


def edges(builder: Any, base: Any, stride: Any, last: Any, count: int) -> list[Any]:
    """Emit `count` addresses, `stride` apart; those past number `last` repeat it.

    So a tile at an edge computes its last row again, to the same bits, instead of being another
    function.
    """
    found = []
    for index in range(count):
        at = ir.Constant(ir.IntType(64), index)
        at = builder.select(builder.icmp_signed("<", at, last), at, last) if index else at
        found.append(builder.add(base, builder.mul(at, stride)))
    return found


def _loader(kind: str, typingctx: Any, address: Any) -> Any:
    numba_type, llvm_type = _SCALARS[kind]

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return read(builder, args[0], llvm_type)

    return (numba_type(types.int64), emit) if isinstance(address, types.Integer) else None


def _storer(kind: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        write(builder, args[1], args[0])
        return context.get_dummy_value()

    return types.void(types.int64, kind), emit


@instruction
def address_of(typingctx: Any, array: Any) -> Any:
    """Return the address of an array's first element."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return (types.int64(array), emit) if isinstance(array, types.Array) else None


@instruction
def load_f32(typingctx: Any, address: Any) -> Any:
    """Return the float32 at `address`."""
    return _loader("f32", typingctx, address)


@instruction
def load_f64(typingctx: Any, address: Any) -> Any:
    """Return the float64 at `address`."""
    return _loader("f64", typingctx, address)


@instruction
def load_i64(typingctx: Any, address: Any) -> Any:
    """Return the int64 at `address`."""
    return _loader("i64", typingctx, address)


@instruction
def store_f32(typingctx: Any, address: Any, value: Any) -> Any:
    """Write one float32."""
    return _storer(types.float32)


@instruction
def store_f64(typingctx: Any, address: Any, value: Any) -> Any:
    """Write one float64."""
    return _storer(types.float64)


@instruction
def store_i32(typingctx: Any, address: Any, value: Any) -> Any:
    """Write one int32."""
    return _storer(types.int32)


@instruction
def store_i64(typingctx: Any, address: Any, value: Any) -> Any:
    """Write one int64."""
    return _storer(types.int64)


@instruction
def load(typingctx: Any, address: Any) -> Any:
    """Return the 16 float32 at `address`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return read(builder, args[0], F32.llvm)

    return F32(types.int64), emit


@instruction
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write 16 float32."""
    return _storer(F32)


def _partly(builder: Any, source: Any, target: Any, count: Any) -> None:
    """Emit a copy of `count` float32 one by one: rows end anywhere, memory behind them may not."""
    with cgutils.for_range(builder, count) as loop:
        distance = builder.mul(loop.index, ir.Constant(ir.IntType(64), 4))
        value = read(builder, builder.add(source, distance), ir.FloatType())
        write(builder, value, builder.add(target, distance))


def read_part(builder: Any, address: Any, count: Any) -> Any:
    """Emit a load of `count` < 16 float32; other lanes are zero and their memory is not touched."""
    buffer = cgutils.alloca_once(builder, F32.llvm)
    builder.store(ir.Constant(F32.llvm, [0.0] * LANES), buffer)
    _partly(builder, address, builder.ptrtoint(buffer, ir.IntType(64)), count)
    return builder.load(buffer)


@instruction
def load_part(typingctx: Any, address: Any, count: Any) -> Any:
    """Return `count` < 16 float32 in the first lanes, zero in the others."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return read_part(builder, *args)

    return F32(types.int64, types.int64), emit


@instruction
def store_part(typingctx: Any, address: Any, value: Any, count: Any) -> Any:
    """Write the first `count` < 16 lanes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, value, count = args
        buffer = cgutils.alloca_once(builder, F32.llvm)
        builder.store(value, buffer)
        _partly(builder, builder.ptrtoint(buffer, ir.IntType(64)), address, count)
        return context.get_dummy_value()

    return types.void(types.int64, F32, types.int64), emit


@device
def load_most(address: int, count: int) -> Any:
    """Return `count` <= 16 float32 in the first lanes, zero in the others."""
    return load(address) if count == LANES else load_part(address, count)


@device
def store_most(address: int, value: Any, count: int) -> None:
    """Write the first `count` <= 16 lanes."""
    if count == LANES:
        store(address, value)
    else:
        store_part(address, value, count)


@instruction
def words(typingctx: Any, values: Any) -> Any:
    """Put a tuple of int64 and float32 on the stack, eight bytes each; return the address.

    It is valid until the function that is compiled around this call returns.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        count = len(sig.args[0])
        buffer = cgutils.alloca_once(builder, ir.ArrayType(word, count))
        place = builder.ptrtoint(buffer, word)
        for index, kind in enumerate(sig.args[0]):
            value = builder.extract_value(args[0], index)
            if kind == types.float32:
                value = builder.zext(builder.bitcast(value, ir.IntType(32)), word)
            elif value.type != word:
                return None
            write(builder, value, offset(builder, place, 8 * index))
        return place

    return (types.int64(values), emit) if isinstance(values, types.BaseTuple) else None


def keep_apart(builder: Any) -> None:
    """Keep the compiler from moving loads over this place; no instruction comes of it.

    It would decode far more weights ahead of their use than there are registers.
    """
    builder.fence("seq_cst", targetscope="singlethread")


def stack_room(builder: Any, size: int) -> Any:
    """Emit the address of `size` bytes of stack memory, at a cache line, valid in this function."""
    with builder.goto_entry_block():  # alloca_once would fill it with zeros, word by word
        room = builder.alloca(ir.ArrayType(ir.IntType(8), size))
        room.align = LINE
    return builder.ptrtoint(room, ir.IntType(64))


@instruction
def _fetch(typingctx: Any, address: Any) -> Any:
    """Have the cache line of `address` read ahead of its use; any address will do."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        prefetch(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@device
def fetch_lines(address: int, size: int) -> None:
    """Have `size` bytes from `address` on read ahead of their use; any address will do."""
    for line in range(0, size, LINE):
        _fetch(address + line)


@instruction
def call_kernel(typingctx: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call compiled kernel code by address with its three words."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, anything = ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(anything, [anything, word, word, word])
        code = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(code, [ir.Constant(anything, None), *args[1:]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit
