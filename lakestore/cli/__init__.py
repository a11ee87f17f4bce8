"""The `lakestore` command: one module per group of commands, each with its `COMMANDS`.

`main` lists the commands without importing them, and loads the one that is asked for. Commands print tables or JSON on
stdout and everything else on stderr, so that output can be piped and read in again; an error is one sentence and an
exit code. `connection` gives a lake and its credentials, `output` prints, `row_files` and `json_lines` are the formats
of rows. Only here are `click` and `print`. Not here: work of any kind, which commands call by the names that programs
use, and rules about tables or rows.
"""
