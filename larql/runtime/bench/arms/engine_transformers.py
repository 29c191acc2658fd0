"""Hugging Face transformers as an arm; runs without larql."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Transformers", "load"]


class Transformers:
    """A model in transformers on a CPU; only the last position of a prefill has logits.

    A GGUF file is dequantised when it is loaded, so weights occupy four or two bytes each.
    """

    def __init__(self, model: Path, threads: int, dtype: str) -> None:
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        torch.set_num_threads(threads)
        kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        began = time.perf_counter()
        if model.is_file():
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                model.parent, gguf_file=model.name, dtype=kind
            )
        else:
            self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=kind)
        self._model.eval()
        self.load_seconds = time.perf_counter() - began
        self._cache = transformers.DynamicCache(config=self._model.config)
        self.facts: dict[str, object] = {
            "transformers": transformers.__version__,
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "dtype": str(self._model.dtype),
            "attention": str(self._model.config._attn_implementation),
        }

    def prefill(self, ids: list[int]) -> int:
        """Start anew."""
        self._cache = self._transformers.DynamicCache(config=self._model.config)
        return self._advance(ids)

    def step(self, token: int) -> int:
        """Advance by one."""
        return self._advance([token])

    def rewind(self, length: int) -> bool:
        """Go back, where no windowed layer has dropped what it would need."""
        try:
            self._cache.crop(length)
        except (RuntimeError, ValueError):  # which of them differs between versions
            return False
        return True

    def _advance(self, ids: list[int]) -> int:
        with self._torch.inference_mode():
            out = self._model(
                input_ids=self._torch.tensor([ids]),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
            return int(out.logits[0, -1].argmax())


def load(options: Mapping[str, object]) -> Transformers:
    """Load ``model``, a GGUF file or a checkpoint directory, in ``dtype``; see `Transformers`."""
    threads = options["threads"]
    assert isinstance(threads, int)
    return Transformers(Path(str(options["model"])), threads, str(options["dtype"]))
