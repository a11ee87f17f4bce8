"""Rows as Arrow: in from users and off the wire, keys and hashes, conditions.

What comes from outside is validated before anything touches it; no loop over rows.
"""
