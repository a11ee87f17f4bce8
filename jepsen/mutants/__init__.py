"""Mutants: bugs that are planted in a copy of the product, and the hunt in which the suite has to find each of them.

`planted.toml` is the list; `mutant` plants one; `hunt` runs the simulation and real processes on the copy until an
anomaly shows, and makes the table of what found it and after how long.
"""
