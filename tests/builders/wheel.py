"""Tiny wheels, whole or damaged in one chosen way."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["build_sdist", "build_wheel"]


def build_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    requires: Iterable[str] = (),
    record: Mapping[str, str | None] | None = None,
    links: Iterable[str] = (),
    tag: str = "py3-none-any",
    requires_python: str | None = None,
) -> Path:
    """Write ``<name>-<version>-<tag>.whl``.

    Parameters
    ----------
    directory : Path
        Where to.
    name, version : str
        The project.
    files : mapping of str to bytes
        Content by name in the archive; a name may be hostile. ``{info}`` in it stands for the
        ``.dist-info`` directory.
    requires : iterable of str
        ``Requires-Dist`` lines.
    record : mapping, optional
        By file name: a RECORD entry ``<algorithm>=<digest>,<size>`` to write instead of the true
        one, or None to leave the file out of RECORD.
    links : iterable of str
        Files to mark as symbolic links.
    tag : str
        Compatibility tag.
    requires_python : str, optional
        ``Requires-Python``.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {member.replace("{info}", info): data for member, data in files.items()}
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    if requires_python is not None:
        lines.append(f"Requires-Python: {requires_python}")
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    content = {
        **files,
        f"{info}/METADATA": "\n".join([*lines, "", "A model."]).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    rows = []
    for path, data in content.items():
        given = (record or {}).get(path, record_entry(data))
        if given is not None:
            rows.append(f"{path},{given}")
    rows.append(f"{info}/RECORD,,")
    content[f"{info}/RECORD"] = ("\n".join(rows) + "\n").encode()
    path = directory / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            entry = zipfile.ZipInfo(member)
            entry.compress_type = zipfile.ZIP_DEFLATED
            if member in links:
                entry.external_attr = 0o120777 << 16
            archive.writestr(entry, data)
    return path


def record_entry(data: bytes, algorithm: str = "sha256") -> str:
    """Return what RECORD says of a file."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=")
    return f"{algorithm}={digest.decode()},{len(data)}"


def build_sdist(directory: Path, name: str, version: str, setup: str) -> Path:
    """Write a source distribution whose ``setup.py`` is ``setup``."""
    stem = f"{name}-{version}"
    path = directory / f"{stem}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, text in {
            "setup.py": setup,
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        }.items():
            entry = tarfile.TarInfo(f"{stem}/{member}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path
