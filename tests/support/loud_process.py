"""A process that writes what looks like a line of a log, and a terminal escape, to its standard error."""

import sys

sys.stderr.write("\x1b]0;owned\x07\n2026 INFO all is well\n")
