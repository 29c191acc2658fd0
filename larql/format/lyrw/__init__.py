"""LYRW: files of expert banks, version 1 inside VINDEX2 and version 2 inside VINDEX3.

The layouts are specified in ``docs/format.md``. A file carries bytes and their shapes, never what
is computed with them.
"""
