"""llama.cpp as an arm, through its Python binding, the package `llama_cpp`; runs without larql."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence

__all__ = ["LlamaCpp", "load"]

_BATCH = 512


class LlamaCpp:
    """A model in llama.cpp, whose C functions are called without the binding's own layer.

    Only the last position of a prefill has logits. Windowed layers keep their window only, as
    llama.cpp's own programs do.
    """

    def __init__(self, path: str, threads: int, room: int, flash: bool) -> None:
        import llama_cpp as c
        import numpy

        self._c, self._numpy = c, numpy
        began = time.perf_counter()
        c.llama_backend_init()
        how = c.llama_model_default_params()
        how.n_gpu_layers = 0
        model = c.llama_model_load_from_file(path.encode(), how)
        if not model:
            raise RuntimeError(f"{path} cannot be loaded")
        settings = c.llama_context_default_params()
        settings.n_ctx = room
        settings.n_batch = settings.n_ubatch = _BATCH
        settings.n_threads = settings.n_threads_batch = threads
        settings.swa_full = False
        settings.flash_attn_type = (
            c.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else c.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self._context = c.llama_init_from_model(model, settings)
        if not self._context:
            raise RuntimeError(f"{path} cannot be run with room for {room} positions")
        self.load_seconds = time.perf_counter() - began
        self._memory = c.llama_get_memory(self._context)
        self._vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
        self.facts: dict[str, object] = {
            "llama_cpp_python": c.__version__,
            "system": c.llama_print_system_info().decode(errors="replace"),
            "threads": c.llama_n_threads(self._context),
            "batch": _BATCH,
            "flash_attention": flash,
            "keys_and_values": "f16",
        }

    def prefill(self, ids: list[int]) -> int:
        """Start anew."""
        self._c.llama_memory_clear(self._memory, False)
        for first in range(0, len(ids), _BATCH):
            self._advance(ids[first : first + _BATCH], last=first + _BATCH >= len(ids))
        return self._largest()

    def step(self, token: int) -> int:
        """Advance by one."""
        self._advance((token,), last=True)
        return self._largest()

    def rewind(self, length: int) -> bool:
        """Go back, where nothing has been dropped."""
        if self._c.llama_memory_seq_pos_min(self._memory, 0) > 0:
            return False
        return bool(self._c.llama_memory_seq_rm(self._memory, 0, length, -1))

    def _advance(self, ids: Sequence[int], last: bool) -> None:
        count = len(ids)
        tokens = (self._c.llama_token * count)(*ids)
        batch = self._c.llama_batch_get_one(tokens, count)
        wanted = (ctypes.c_int8 * count)()
        if not last:  # without flags, the last position has logits
            batch.logits = wanted
        status = self._c.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode of {count} tokens returned {status}")

    def _largest(self) -> int:
        row = self._c.llama_get_logits_ith(self._context, -1)
        return int(self._numpy.ctypeslib.as_array(row, (self._vocabulary,)).argmax())


def load(options: Mapping[str, object]) -> LlamaCpp:
    """Load the GGUF file ``model``; see `LlamaCpp`."""
    threads, room = options["threads"], options["room"]
    assert isinstance(threads, int) and isinstance(room, int)
    return LlamaCpp(str(options["model"]), threads, room, options["flash"] is True)
