"""The post-processor that puts BOS and EOS around a text."""

from __future__ import annotations

from larql.format.tokenizer.vocabulary import TextSettings

__all__ = ["bos_eos_template"]


def bos_eos_template(settings: TextSettings) -> dict[str, object] | None:
    """Return the ``TemplateProcessing`` for what is added around a text, or None for nothing.

    It is for other readers of the container: larql itself goes by ``tokenizer_config.json``.
    """
    before = ["bos"] if settings.add_bos else []
    after = ["eos"] if settings.add_eos else []
    if not before and not after:
        return None

    def sequence(name: str, type_id: int) -> list[dict[str, object]]:
        def token(role: str) -> dict[str, object]:
            return {"SpecialToken": {"id": settings.special_text[role], "type_id": type_id}}

        return [
            *(token(role) for role in before),
            {"Sequence": {"id": name, "type_id": type_id}},
            *(token(role) for role in after),
        ]

    tokens: dict[str, object] = {}
    for role in (*before, *after):
        text = settings.special_text[role]
        tokens[text] = {"id": text, "ids": [settings.special[role]], "tokens": [text]}
    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": [*sequence("A", 0), *sequence("B", 1)],
        "special_tokens": tokens,
    }
