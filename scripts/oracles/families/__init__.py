"""One file per family: the recipes of its oracles, as ``RECIPES``."""
