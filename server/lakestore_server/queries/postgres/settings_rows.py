"""Rows of pg_settings: variables that clients ask for, with the values of a session.

`SHOW` and `SET` are the session's own; this is what `current_setting()` and pg_settings read in a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAJOR = 15
"""The version of PostgreSQL that the port speaks, and whose catalog `postgres15.json` is."""
SERVER_VERSION, SERVER_VERSION_NUM = f"{MAJOR}.18 (Lakestore)", f"{MAJOR}0018"
DEFAULTS = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "default_table_access_method": "heap",
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "extra_float_digits": "1",
    "integer_datetimes": "on",
    "IntervalStyle": "postgres",
    "in_hot_standby": "off",
    "is_superuser": "off",
    "jit": "off",
    "lc_collate": "C",
    "lc_ctype": "C",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "row_security": "off",
    "server_encoding": "UTF8",
    "server_version": SERVER_VERSION,
    "server_version_num": SERVER_VERSION_NUM,
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "TimeZone": "UTC",
    "transaction_isolation": "repeatable read",
    "transaction_read_only": "on",
}


def rows(variables: Mapping[str, str], search_path: Sequence[str]) -> list[tuple[str, str, str]]:
    """(name, value, description) of each variable, in the order of the names."""
    spelled = {name.lower(): name for name in DEFAULTS}
    values = DEFAULTS | {"search_path": ", ".join(search_path)}
    values |= {spelled.get(name.lower(), name): value for name, value in variables.items()}
    return [(name, values[name], "") for name in sorted(values, key=str.lower)]
