"""What Qwen2 and Qwen3 have in common: windows on the later layers, where they are asked for."""

from __future__ import annotations

from larql.format.graph import Rope
from larql.format.source.config import ConfigReader
from larql.format.source.decoder import Attention
from larql.format.source.keys import layer_kinds

__all__ = ["attention_of_layers"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WINDOW = 4096
_UNWINDOWED = 28


def attention_of_layers(config: ConfigReader, layers: int, rope: Rope) -> tuple[Attention, ...]:
    """Read which layers have a window.

    ``sliding_window`` counts only where ``use_sliding_window`` says so, and then for the layers
    from ``max_window_layers`` on, unless ``layer_types`` lists them.

    Raises
    ------
    CompileError
        If ``layer_types`` asks for windows and nothing says how wide, or for others than
        ``max_window_layers``.
    """
    wanted = config.flag("use_sliding_window", False)
    window = config.nullable_count("sliding_window", _WINDOW) if wanted else None
    config.irrelevant("sliding_window")
    first = config.count("max_window_layers", _UNWINDOWED, least=0)
    kinds = layer_kinds(config, "layer_types", layers, {_FULL: _FULL, _SLIDING: _SLIDING})
    by_number = tuple(_SLIDING if window and i >= first else _FULL for i in range(layers))
    if kinds is None:
        kinds = by_number
    # The number is written beside any list, with its default; then the list decides.
    elif window and first != _UNWINDOWED and kinds != by_number:
        sliding = [i for i, kind in enumerate(kinds) if kind == _SLIDING]
        config.contradiction("layer_types", "max_window_layers", f"sliding at {sliding[:8]}", first)
    if window is None and _SLIDING in kinds:
        config.contradiction("layer_types", "use_sliding_window", _SLIDING, wanted)
    return tuple(Attention(window if kind == _SLIDING else None, rope) for kind in kinds)
