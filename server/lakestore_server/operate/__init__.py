"""For those who run the server: status, verify, metrics, calls, backup, restore, inspect.

Reads everything and changes nothing but by a restore into an empty folder.
"""
