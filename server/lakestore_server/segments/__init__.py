"""Segments: cut from the log at checkpoints, merged and compacted while the server serves, checked block by block.

A segment holds row versions of one bucket in the order of their offsets. It never changes; a checkpoint names it.
"""
