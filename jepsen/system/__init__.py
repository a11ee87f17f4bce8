"""The system under test as real processes, started as a user starts them: by the command line, settings and signals.

`system` puts together what a run needs; every part is a module: `server`, and beside it the tierer, a Kafka broker, an
object store, proxies. Parts have a `start`, a `kill` and a `stop`, and all of them can be called twice.
"""

from jepsen.system.system import System

__all__ = ["System"]
