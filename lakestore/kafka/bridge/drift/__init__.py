"""Drift: differences between schemas of records and tables, followed or waiting as proposals."""
