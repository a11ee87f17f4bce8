"""Casts: values of records as columns of the declared types, with the rows that do not fit. Values in, values out."""
