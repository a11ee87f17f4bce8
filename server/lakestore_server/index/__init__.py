"""The key index: key to the offset of its live version.

An overlay in memory holds what came since the last checkpoint, LMDB behind a pipe what was before. Derived data: it can
be rebuilt from segments and journal. Rows are not here.
"""
