"""The write path, in the order in which a row takes it.

producers (verbs) - request - queue - loop - build (numbering, merge, index) - journal - state - wake-ups. One thread
owns all state; a commit is answered once it is durable. Recovery runs the same steps over the journal.
"""
