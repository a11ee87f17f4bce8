"""Stands for pandas in processes that tests start: Arrow loads pandas wherever it is installed.

Users' servers have no pandas (`requirements.lock`), and loading it takes a third of a server's start.
"""

raise ImportError("tests hide pandas from the processes that they start")
