"""The `lakestore` command: one module per group of commands.

`main` lists the commands without importing them. Commands print tables or JSON on stdout and progress on stderr; an
error is one sentence and an exit code. Only here are `click` and `print`. Not here: work of any kind, which commands
call by the names that programs use.
"""
