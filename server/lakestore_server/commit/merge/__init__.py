"""Merge engines: a row for a key that is there, combined with the live row.

Pure but for reading the live rows. The log holds merged rows, so nothing behind the commit knows of engines.
"""
