"""What a table is: columns, types, options, times, tokens and settings as values.

Pure: no rows, no clock, no file.
"""
