"""`make bench growth`: how speed, disk and memory go with the number of keys of one table, and what a crowd costs.

`command` is the command line, `keyed` the measures of one number of keys, `crowd` those of many tables, `measured` the
figures with their bars and the store docs/growth.json, `picture` the plot. One fill of a folder serves every measure.
"""
