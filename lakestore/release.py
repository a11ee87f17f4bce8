"""Which release of Lakestore this is."""

from importlib.metadata import version

RELEASE = version("lakestore")
"""As pip names it."""
