"""The text side of a container: tokenizer files carried from a checkpoint or rebuilt from GGUF.

Nothing here imports the ``tokenizers`` library: files are written in its JSON format piece by
piece, so that extracting a model of 262,144 pieces stays small.
"""

from __future__ import annotations

from larql.format.tokenizer.files import (
    SOURCE_CONFIG,
    TokenizerFile,
    companion_files,
    configuration_file,
    licence_files,
    tokenizer_files,
)

__all__ = [
    "SOURCE_CONFIG",
    "TokenizerFile",
    "companion_files",
    "configuration_file",
    "licence_files",
    "tokenizer_files",
]
