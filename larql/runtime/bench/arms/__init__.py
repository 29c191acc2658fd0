"""What runs in the child process of an arm; the peers' modules run without larql installed.

A peer's child is started by path, in an interpreter that may know nothing of larql: `child` and
``engine_…`` modules of peers import the standard library and the peer alone. The directory is then
first on the module search path, so no module in it may be named like one that a peer imports.
"""
