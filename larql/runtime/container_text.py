"""A container's own tokenizer, and the tokens that end its texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from larql.format.container import Container

if TYPE_CHECKING:
    from larql.runtime.text import TextTokenizer

__all__ = ["end_ids", "tokenizer_of"]


def tokenizer_of(container: Container) -> TextTokenizer:
    """Load a container's tokenizer.

    Raises
    ------
    TokenizerError
        If it carries none, or one that cannot be loaded.
    """
    from larql.runtime.text import load_tokenizer

    prefix = "warning: no tokenizer is carried: "
    reasons = [n.removeprefix(prefix) for n in container.index.notes if n.startswith(prefix)]
    for name in container.text_files():
        container.check_bytes(name)
    return load_tokenizer(container.text_files(), reason=reasons[0] if reasons else None)


def end_ids(container: Container, tokenizer: TextTokenizer | None) -> tuple[int, ...]:
    """Return every id that ends a text: the union of all that configuration and tokenizer declare.

    Without a loaded tokenizer, what was recorded at extraction, which is the same unless a file was
    unusual.
    """
    stated = container.index.text.get("end_of_text_ids")
    extra = [i for i in stated if isinstance(i, int)] if isinstance(stated, list) else []
    if tokenizer is not None:
        return tokenizer.end_of_text(extra)
    return tuple(sorted(extra))
