"""Which release of Lakestore this is."""

from importlib.metadata import version

RELEASE = version("lakestore")
"""The release as pip names it."""
