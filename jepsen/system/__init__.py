"""The system under test as real processes, started as a user starts them: by the command line, settings and signals.

`system` puts together what a run needs, `replicas` several servers that share a journal, or `cluster` stands for one
that runs elsewhere. Parts: `server` with drawn `settings`, `tierer`, `spark`, `kafka` with `bridges`, `store` with its
`object_store`, whose `store_requests` are counted, and `clients` in processes of their own (`client_process`, which
gets the addresses of `reached`);
`processes` finds, signals and ends them all, and `jvm` has their options. Each part has a `start`, a `kill` and a
`stop` that may be called twice. The ways: `proxy`, `http_proxy` on `http_server`, `wire`. The disk: `disk` by the rules
of `shim`, with `undo`, `power` of a power cut. The time: `clock`. `preload` compiles the libraries of both.
"""

from jepsen.system.system import System

__all__ = ["System"]
