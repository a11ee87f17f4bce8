"""`python -m lakestore` is the `lakestore` command."""

from lakestore.cli.main import main

main()
