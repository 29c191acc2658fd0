"""The executors of a plan: ``production`` computes, ``reference`` is what it is held against."""
