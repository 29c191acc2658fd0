"""A checkpoint as its maker published it: named tensors, a configuration, files beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Self

from larql.errors import SourceError, UnsupportedRefusal
from larql.format.encoding import Encoding
from larql.format.rows import RowSelection, row_count
from larql.format.source.weight_file import WeightFile
from larql.format.untrusted import (
    POINTER_LIMIT,
    open_regular,
    read_exactly,
    refuse_pointer,
    shown,
)

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

__all__ = ["Checkpoint", "SourceTensor", "find_side_files", "open_checkpoint", "visible_names"]

TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a checkpoint, not yet read.

    Attributes
    ----------
    name : str
        Name in the checkpoint.
    shape : tuple of int
        Row-major, outermost first (the reverse of GGUF's order).
    dtype : str
        The file's own name of the type: a safetensors dtype or a ggml type, in upper case.
    known_encoding : Encoding or None
        The encoding of the bytes, None where this build has none (integers, float8, ...).
    file : str
        Weights file, relative to the checkpoint's root.
    offset, nbytes : int
        Byte range in that file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    known_encoding: Encoding | None
    file: str
    offset: int
    nbytes: int

    @property
    def encoding(self) -> Encoding:
        """The encoding of the bytes.

        Raises
        ------
        UnsupportedRefusal
            If this build has no encoding for the tensor's dtype. Only asking raises: a checkpoint
            may carry such tensors as long as nothing needs them.
        """
        if self.known_encoding is None:
            raise UnsupportedRefusal(
                f"{self.file}: tensor {shown(self.name)} is stored as {self.dtype}, which this "
                "build does not decode; expected F32, F16 or BF16, convert the tensor to one"
            )
        return self.known_encoding


class Checkpoint(ABC):
    """An open checkpoint. Opening reads headers only; a file is opened when a tensor needs it.

    Parameters
    ----------
    root : Path
        Directory that the tensors' ``file`` is relative to.
    files : Mapping of str to WeightFile
        Weights files by relative name, in order.
    tensors : Mapping of str to SourceTensor
        By name, in file order.
    side_files : Mapping of str to Path
        Other files that belong to the model, by name.

    Attributes
    ----------
    format : str
        ``"safetensors"`` or ``"gguf"``.
    root, tensors, side_files
        As given.
    """

    format: Literal["safetensors", "gguf"]

    def __init__(
        self,
        root: Path,
        files: Mapping[str, WeightFile],
        tensors: Mapping[str, SourceTensor],
        side_files: Mapping[str, Path],
    ) -> None:
        self.root = root
        self.tensors: Mapping[str, SourceTensor] = MappingProxyType(dict(tensors))
        self.side_files: Mapping[str, Path] = MappingProxyType(dict(side_files))
        self._files = dict(files)
        if not self.tensors:
            raise SourceError(
                f"{root}: {', '.join(files)} holds no tensors; expected a model's weights"
            )

    @property
    @abstractmethod
    def config(self) -> Mapping[str, object]:
        """The model's configuration: ``config.json``, or all metadata of a GGUF file."""

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """All files that hold tensors, in order."""
        return tuple(file.path for file in self._files.values())

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a tensor's bytes as a read-only mapped 1-D uint8 array.

        Parameters
        ----------
        name : str
            A key of ``tensors``.

        Returns
        -------
        ndarray of uint8
            Shape ``(nbytes,)``. It stays valid after :meth:`close`.

        Raises
        ------
        SourceError
            If there is no such tensor, or its file cannot be read or changed since it was opened.
        """
        tensor = self._tensor(name)
        return self._files[tensor.file].view(tensor.offset, tensor.nbytes)

    def chunks(
        self, name: str, size: int = 8 << 20, rows: RowSelection | None = None
    ) -> Iterator[bytes]:
        """Yield a tensor's bytes in order, at most ``size`` at a time.

        They are read, not mapped, so that streaming a model does not grow resident memory.

        Parameters
        ----------
        name : str
            A key of ``tensors``.
        size : int
        rows : RowSelection or None
            Only these rows, in order; None: all.

        Raises
        ------
        SourceError
            As :meth:`read`, or if the file ends too early.
        """
        tensor = self._tensor(name)
        file = self._files[tensor.file]
        if rows is None:
            return file.chunks(tensor.offset, tensor.nbytes, size)
        return _row_chunks(file, tensor, rows, size)

    def _tensor(self, name: str) -> SourceTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise SourceError(f"{self.root}: the checkpoint has no tensor {shown(name)}")
        return tensor

    def close(self) -> None:
        """Close all files. Views that :meth:`read` gave out stay valid."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _row_chunks(
    file: WeightFile, tensor: SourceTensor, rows: RowSelection, size: int
) -> Iterator[bytes]:
    """Yield the bytes of some rows, whole rows at a time."""
    each = tensor.nbytes // row_count(tensor.shape)
    most = max(1, size // each) * each
    kept: list[bytes] = []
    held = 0
    for first, count in rows.spans():
        at, end = tensor.offset + first * each, tensor.offset + (first + count) * each
        while at < end:
            taken = min(most - held, end - at)
            kept.extend(file.chunks(at, taken, size))
            at, held = at + taken, held + taken
            if held == most:
                yield b"".join(kept)
                kept, held = [], 0
    if kept:
        yield b"".join(kept)


def find_side_files(directory: Path, names: tuple[str, ...]) -> dict[str, Path]:
    """Return those of ``names`` that are files in ``directory``.

    Raises
    ------
    SourceError
        If one of them is a Git LFS pointer.
    """
    found: dict[str, Path] = {}
    for name in names:
        path = directory / name
        try:
            if not path.is_file():
                continue
        except OSError as problem:
            raise SourceError(f"{path}: cannot read: {problem.strerror}") from None
        with open_regular(path, SourceError) as (descriptor, status):
            if status.st_size <= POINTER_LIMIT:
                head = read_exactly(descriptor, 0, status.st_size, str(path), SourceError)
                refuse_pointer(head, str(path), SourceError)
        found[name] = path
    return found


def visible_names(directory: Path) -> list[str]:
    """Return the sorted names in a directory without hidden ones (``._x`` copies and the like)."""
    return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint in either format.

    Parameters
    ----------
    path : Path
        A directory with safetensors files (single, or sharded with or without an index) or with
        one GGUF model, a ``.safetensors`` file beside its ``config.json``, or a ``.gguf`` file
        (of a model in several parts, any part).

    Returns
    -------
    Checkpoint
        Open; close it, or use it as a context manager.

    Raises
    ------
    SourceError
        If nothing readable is there, what is there is ambiguous, or a file's header is malformed.
    UnsupportedRefusal
        If a GGUF tensor has an encoding that this build does not decode.
    """
    from larql.format.source.gguf import open_gguf
    from larql.format.source.safetensors_dir import open_safetensors

    try:
        is_directory = path.is_dir()
        names = visible_names(path) if is_directory else []
    except (OSError, ValueError) as problem:
        raise SourceError(f"{path}: cannot read: {problem}") from None
    if not is_directory:
        return open_gguf(path) if _is_gguf(path) else open_safetensors(path)
    with_safetensors = any(
        name.endswith((".safetensors", ".safetensors.index.json")) for name in names
    )
    gguf_models = _gguf_models(names)
    if with_safetensors and gguf_models:
        raise SourceError(
            f"{path}: holds both safetensors and {gguf_models[0]}; name the file that you mean"
        )
    if with_safetensors:
        return open_safetensors(path)
    if len(gguf_models) > 1:
        raise SourceError(
            f"{path}: holds {len(gguf_models)} GGUF models ({_some(gguf_models)}); name one file"
        )
    if gguf_models:
        return open_gguf(path / gguf_models[0])
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickled:
        raise SourceError(
            f"{path}: holds {_some(pickled)} but no safetensors or GGUF; pickled weights are not "
            "read, convert them to safetensors"
        )
    raise SourceError(f"{path}: holds no safetensors or GGUF file; expected a checkpoint")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(shown(name) for name in names[:3]) + more


def _gguf_models(names: list[str]) -> list[str]:
    """Return one file name for each GGUF model: a model in parts counts once, by its first part."""
    from larql.format.source.gguf import split_part_name

    models: dict[str, str] = {}
    for name in names:
        if name.endswith(".gguf"):
            part = split_part_name(name)
            models.setdefault(f"{part.stem}/{part.count}" if part else name, name)
    return list(models.values())


def _is_gguf(path: Path) -> bool:
    with open_regular(path, SourceError) as (descriptor, status):
        head = read_exactly(
            descriptor, 0, min(status.st_size, POINTER_LIMIT), str(path), SourceError
        )
    refuse_pointer(head, str(path), SourceError)
    if head.startswith(GGUF_MAGIC) or path.suffix == ".gguf":
        return True
    if path.suffix == ".safetensors":
        return False
    raise SourceError(
        f"{path}: begins with {head[:4]!r}; expected a .gguf or .safetensors file, or a directory"
    )
