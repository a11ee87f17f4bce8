"""The `lakestore` command: one module for each group of commands, each with a list `COMMANDS`.

- `main` lists the commands without importing them and imports the one that runs.
- Commands print tables or JSON on stdout and everything else on stderr, so output can be piped. An error is one
  sentence and an exit code.
- Only this package uses `click` and `print`. Commands do no work themselves; they call the public API.

`connection` opens a lake with its credentials, `output` prints, `row_files` and `json_lines` are row formats.
"""
