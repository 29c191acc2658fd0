"""Write the generated parts of docs/format.md: the table of encodings and the example.

    python scripts/docs/format_parts.py            rewrite them
    python scripts/docs/format_parts.py --check    exit 1 if they are not what would be written

The table is read from the program. The example is a container that is extracted here from a
checkpoint of one layer, made of numbers that every machine computes alike.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from larql.format.container import Container, verify_container
from larql.format.encoding import ENCODINGS, Encoding
from larql.format.progress import SilentProgress
from larql.format.safetensors_header import contiguous_entries, serialize_header
from larql.format.segment import Segment
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.extract import extract

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
WIDTH = 120
FLOATS = {"f32": "IEEE 754 binary32", "f16": "IEEE 754 binary16", "bf16": "bfloat16"}
HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 32, 2, 1, 64, 16


@dataclass(frozen=True)
class Example:
    """A container that was extracted for the page.

    Attributes
    ----------
    fingerprint : str
    index, graph : object
        The two documents, parsed.
    segment_file : str
        Name of one of its segments.
    segment_header : object
        That segment's header, parsed.
    data_start : int
        Where its tensors begin.
    """

    fingerprint: str
    index: object
    graph: object
    segment_file: str
    segment_header: object
    data_start: int


def main() -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = old
    for name, text in generated_parts().items():
        new = replace_part(new, name, text)
    if sys.argv[1:] == ["--check"]:
        if new == old:
            return 0
        print(f"{PAGE} is out of date: run python scripts/docs/format_parts.py", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


def generated_parts() -> dict[str, str]:
    """Give each generated part of the page by the name in its markers."""
    with tempfile.TemporaryDirectory() as directory:
        example = make_example(Path(directory))
    return {"encodings": encoding_table(), "example": example_text(example)}


def replace_part(page: str, name: str, text: str) -> str:
    """Put ``text`` between the markers of a part."""
    pattern = re.compile(
        rf"(<!-- generated: {name} -->\n).*?(\n<!-- end of generated: {name} -->)", re.DOTALL
    )
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"{PAGE}: expected the markers of {name!r} once")
    return pattern.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)


def encoding_table() -> str:
    """Give the table of encodings."""
    head = (
        "| Name | Elements per block | Bytes per block | Bits per weight | ggml type "
        "| Segment dtype | Written | Layout of the stored bytes |"
    )
    rows = [head, "| --- |" + " ---: |" * 4 + " --- |" * 3]
    for enc in ENCODINGS.values():
        cells = [
            f"`{enc.name}`",
            str(enc.block_elements),
            str(enc.block_bytes),
            f"{enc.bits_per_weight:g}",
            "" if enc.ggml_type is None else str(enc.ggml_type),
            f"`{enc.safetensors_dtype}`",
            _written(enc),
            _layout(enc),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _written(enc: Encoding) -> str:
    if enc.unpacked is not None:
        return "by packing"
    return "yes" if enc.can_encode else "no"


def _layout(enc: Encoding) -> str:
    if enc.unpacked is not None:
        return f"slabs of {enc.slab_rows} rows of `{enc.unpacked}`"
    if enc.name in FLOATS:
        return FLOATS[enc.name]
    return f"ggml `block_{enc.name.replace('_k', '_K')}`"


def make_example(directory: Path) -> Example:
    """Extract the example below ``directory``."""
    source, output = directory / "checkpoint", directory / "tiny.vindex3"
    _write_checkpoint(source)
    with open_checkpoint(source) as checkpoint:
        extract(checkpoint, output, quant="q8_0", force=False, progress=SilentProgress())
    container = Container(output)
    defects = verify_container(container, SilentProgress())
    if defects:
        raise ValueError(f"the example does not verify: {defects[0].line()}")
    name = "segments/target.layer.000.safetensors"
    raw = (output / name).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return Example(
        container.fingerprint,
        json.loads((output / "index.json").read_bytes()),
        json.loads((output / "system_graph.json").read_bytes()),
        name,
        json.loads(raw[8 : 8 + length]),
        Segment(output / name).header_bytes,
    )


def example_text(example: Example) -> str:
    """Give the example as the page shows it."""
    return "\n\n".join(
        [
            f"Fingerprint: `{example.fingerprint}`",
            "`index.json`:",
            _fenced(example.index),
            "`system_graph.json`:",
            _fenced(example.graph),
            f"Header of `{example.segment_file}`, whose tensors begin at byte "
            f"{example.data_start}:",
            _fenced(example.segment_header),
        ]
    )


def _fenced(document: object) -> str:
    return f"```json\n{folded(document)}\n```"


def folded(value: object, indent: int = 0, lead: int = 0) -> str:
    """Give JSON with every value that fits on one line on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + lead + len(line) < WIDTH or not isinstance(value, dict | list):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        parts = []
        for key, item in value.items():
            name = f"{json.dumps(key, ensure_ascii=False)}: "
            parts.append(f"{inner}{name}{folded(item, indent + 1, len(name))}")
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    parts = [f"{inner}{folded(item, indent + 1)}" for item in value]
    return "[\n" + ",\n".join(parts) + "\n" + " " * indent + "]"


def _write_checkpoint(directory: Path) -> None:
    directory.mkdir()
    width = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.self_attn.q_proj.weight": (HEADS * width, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * width, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * width, HIDDEN),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * width),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.layers.0.mlp.gate_proj.weight": (FFN, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (FFN, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, FFN),
        "model.norm.weight": (HIDDEN,),
    }
    config = {
        "model_type": "llama",
        "_name_or_path": "tiny",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": FFN,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }
    entries = contiguous_entries((name, "F32", shape) for name, shape in shapes.items())
    with (directory / "model.safetensors").open("wb") as stream:
        stream.write(serialize_header(entries))
        for position, shape in enumerate(shapes.values()):
            # Multiples of 1/64 between -1 and 1, all of them exact in float32.
            values = [((37 * i + position) % 129 - 64) / 64 for i in range(math.prod(shape))]
            stream.write(struct.pack(f"<{len(values)}f", *values))
    vocabulary = {chr(ord("a") + i): i for i in range(VOCAB)}
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"},
    }
    for name, document in (("config.json", config), ("tokenizer.json", tokenizer)):
        (directory / name).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
