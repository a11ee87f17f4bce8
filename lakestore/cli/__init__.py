"""The `lakestore` command: one module per group of commands."""
