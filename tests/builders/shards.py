"""A layer's bank of experts cut into files, as a container of shards has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from larql.format.container import Container
from larql.format.lyrw.tables import BankSegment, Tables
from larql.format.lyrw.v2 import BankFile
from larql.format.lyrw.v2_writer import write_banks
from tests.builders.containers import edit_index, read_json, vouch_for, write_json


def cut_bank(directory: Path, layer: int = 1, parts: int = 2) -> list[str]:
    """Cut one layer's bank into files, as the manifest then says, and return their names."""
    old = f"routed/layer_{layer:03d}.lyrw"
    whole = BankFile(directory / old, Container(directory).index.schema)
    (bank,) = whole.tables.banks
    width = bank.num_entries // parts
    names = [f"routed/layer_{layer:03d}.seg{number:02d}.lyrw" for number in range(parts)]
    for number, name in enumerate(names):
        segment = BankSegment(bank.bank_id, number, number * width, width)
        tables = Tables(whole.tables.logical_layer, (bank,), (segment,), one_of_several=True)
        with write_banks(directory / name, tables) as writer:
            for entry in range(segment.first_entry, segment.end):
                for schema in bank.schemas:
                    data = whole.stored_bytes(bank.bank_id, entry, schema).tobytes()
                    writer.region(bank.bank_id, entry, schema, [data])
    manifest = read_json(directory / "moe_manifest.json")
    for storage in manifest["storages"]:
        if storage["files"] == [old]:
            storage["files"] = names
    write_json(directory / "moe_manifest.json", manifest)

    def change(index: Any) -> None:
        for part in ("files", "segments"):
            index[part].pop(old)
        for name in names:
            index["segments"][name] = {"schema": "lyrw"}
        for value in index["representations"].values():
            if value["segment"] == old:
                value["segment"] = names[0]

    edit_index(directory, change)
    (directory / old).unlink()
    for name in (*names, "moe_manifest.json"):
        vouch_for(directory, name)
    return names
