"""The doctor: looks at a machine and at settings before a server runs on them, or when one does not.

A look changes nothing that is there: probes are files and objects of its own, removed again. Each look gives findings,
`finding.Finding`; `machine` needs no settings, `folder`, `ports` and `warehouse` take a server's settings.
"""
