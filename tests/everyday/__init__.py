"""Sixty tasks of a user's everyday work, as they would be typed, with the output that a user would accept.

`tasks/*.md` are read by people: a heading is a task, a line with `$` is typed, Python stands in its own blocks, and the
lines below are what comes. `…` in a line stands for anything, a line that is `…` alone for any lines.
"""
