"""Make tiny random checkpoints, run transformers on them, and record what it computes.

Usage: python scripts/oracles/record.py [NAME ...] [--out tests/oracles] [--seed N]

Needs torch and transformers (``pip install -e '.[oracle]'``). Each recipe of ``families/`` becomes
a directory: ``checkpoint/``, as ``save_pretrained`` writes it, and ``recorded.safetensors``; see
docs/testing.md. Names may end with ``*``. A seed other than 0 makes other weights and tokens.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import pkgutil
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import numpy as np
import torch
import transformers
from recipe import Recipe
from safetensors.numpy import save_file
from torch import nn

# A greedy choice that hangs on less than this share of the largest logit is not recorded.
MARGIN = 2e-3


def recipes() -> list[Recipe]:
    """Return the recipes of all families, in the order of their names."""
    found: list[Recipe] = []
    for module in pkgutil.iter_modules(families.__path__):
        found += importlib.import_module(f"families.{module.name}").RECIPES
    names = [recipe.name for recipe in found]
    if len(set(names)) != len(names):
        raise SystemExit(f"two recipes have one name: {sorted(names)}")
    return sorted(found, key=lambda recipe: recipe.name)


def auto_class(config: Any) -> Any:
    """Return what makes and loads a model, which may see and hear beside its text."""
    alone = config.get_text_config() is config
    return transformers.AutoModelForCausalLM if alone else transformers.AutoModelForMultimodalLM


def write_checkpoint(recipe: Recipe, directory: Path) -> None:
    """Write the checkpoint of a recipe as ``save_pretrained`` does."""
    keys = dict(recipe.config)
    config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    model = auto_class(config).from_config(config, attn_implementation="eager")
    model = model.to(torch.float32)
    generator = np.random.default_rng(recipe.seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = recipe.draw(name, tuple(parameter.shape), generator)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
        for name, buffer in sorted(model.named_buffers()):
            if name in model.state_dict():
                values = recipe.draw(name, tuple(buffer.shape), generator)
                buffer.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    model = model.to(getattr(torch, recipe.dtype))
    model.config.dtype = getattr(torch, recipe.dtype)
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    model.save_pretrained(directory, max_shard_size=max(1, size // recipe.shards))
    (directory / "generation_config.json").unlink(missing_ok=True)
    if recipe.rewrite is not None:
        path = directory / "config.json"
        document = recipe.rewrite(json.loads(path.read_text()))
        path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def decoder_layers(model: nn.Module, count: int) -> nn.ModuleList:
    """Return the list of a model's decoder layers."""
    for name, module in model.named_modules():
        listed = isinstance(module, nn.ModuleList) and name.split(".")[-1] == "layers"
        if listed and len(module) == count and "vision" not in name and "audio" not in name:
            return module
    raise SystemExit(f"{type(model).__name__} has no list of {count} layers")


def forward(model: nn.Module, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return hidden states ``[layers + 1, T, hidden]`` and logits ``[T, vocab]``, float32.

    Hidden state 0 is what enters the first layer, state k what layer k - 1 leaves.
    """
    layers = decoder_layers(model, model.config.get_text_config().num_hidden_layers)
    states: list[np.ndarray] = []

    def keep(value: Any) -> None:
        hidden = value[0] if isinstance(value, tuple) else value
        states.append(hidden[0].numpy().astype(np.float32))

    def first(module: nn.Module, args: Any, kwargs: Any) -> None:
        keep(args if args else kwargs["hidden_states"])

    hooks = [layers[0].register_forward_pre_hook(first, with_kwargs=True)]
    hooks += [layer.register_forward_hook(lambda m, a, out: keep(out)) for layer in layers]
    with torch.no_grad():
        out = model(input_ids=torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return np.stack(states), out.logits[0].numpy().astype(np.float32)


def record(recipe: Recipe, directory: Path) -> None:
    """Write one oracle."""
    shutil.rmtree(directory, ignore_errors=True)
    checkpoint = directory / "checkpoint"
    write_checkpoint(recipe, checkpoint)
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    model = (
        auto_class(config)
        .from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )
    vocab = model.config.get_text_config().vocab_size
    generator = np.random.default_rng(recipe.seed + 1)
    tokens = [int(t) for t in generator.integers(0, vocab, recipe.prompt)]
    hidden, logits = forward(model, tokens)
    # Without a cache: each token costs a whole pass, and nothing is carried between them.
    row, greedy = logits[-1], []
    for _ in range(recipe.greedy):
        second, best = np.sort(row)[-2:]
        if best - second < MARGIN * np.abs(row).max():
            raise SystemExit(f"{recipe.name}: greedy choice {len(greedy)} is too close; reseed")
        greedy.append(int(row.argmax()))
        row = forward(model, tokens + greedy)[1][-1]
    save_file(
        {
            "tokens": np.array(tokens, np.int64),
            "greedy": np.array(greedy, np.int64),
            "hidden": hidden,
            "logits": logits,
        },
        directory / "recorded.safetensors",
        metadata={
            "recipe": recipe.name,
            "seed": str(recipe.seed),
            "dtype": recipe.dtype,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    )
    for file in directory.rglob("*.safetensors"):
        file.chmod(0o644)


def main() -> None:
    """Record the oracles that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"])
    parser.add_argument("--out", type=Path, default=Path("tests/oracles"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen = [r for r in recipes() if any(fnmatch.fnmatch(r.name, n) for n in arguments.names)]
    if not chosen:
        raise SystemExit(f"no recipe is called {' or '.join(arguments.names)}")
    for recipe in chosen:
        directory = arguments.out / recipe.name
        record(replace(recipe, seed=recipe.seed + arguments.seed), directory)
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        print(f"{recipe.name}: {size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
