"""Mapping: decoded rows to rows of tables: route, columns, expressions, filter, casts, source positions."""
