"""Merge engines: combine a new row with the live row of its key.

Pure, except that they read live rows. The log holds merged rows, so nothing after the commit knows merge engines.
"""
