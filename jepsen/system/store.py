"""The object store of a run, a proxy before it, and the variables by which server and engines find it.

The store is ours, in memory, or an S3 server that runs already and has an empty bucket `lakestore`, such as S3Proxy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from jepsen.system.http_proxy import HttpProxy
from jepsen.system.object_store import ObjectStore
from jepsen.system.store_requests import StoreRequests

WAREHOUSE = "s3://lakestore/warehouse"
SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>{said}</Message></Error>"


class Store:
    """An object store that is reached through a proxy only."""

    def __init__(self, address: str = "") -> None:
        """`address`: host and port of the S3 server that runs already."""
        self._ours, self.requests = None if address else ObjectStore(), StoreRequests()
        address = self._ours.address if self._ours else address
        self.proxy = HttpProxy(address, refusal=SLOW_DOWN, watch=self.requests.note)
        self._before: dict[str, str | None] | None = None

    @property
    def kept(self) -> ObjectStore:
        """Our store in memory, for tests that look into it."""
        assert self._ours is not None
        return self._ours

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the SDKs of AWS, and obstore, find a store and may enter it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.proxy.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "jepsen",
            "AWS_SECRET_ACCESS_KEY": "jepsen-secret",  # an S3 without accounts
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def tell(self) -> None:
        """Put the variables into this process, whose engines need them, and so into all that it starts."""
        if self._before is None:
            self._before = {name: os.environ.get(name) for name in self.environment}
            os.environ.update(self.environment)

    def close(self) -> None:
        """Stop, and leave this process's variables as they were."""
        _restore(self._before or {})
        self._before = None
        self.proxy.close()
        if self._ours is not None:
            self._ours.close()


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
