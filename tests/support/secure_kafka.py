"""A broker with a second listener that asks for SASL over TLS, and with rights: one user has all, the others what a
test gives them."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from jepsen.system.kafka import KafkaProcess
from jepsen.system.server import free_port
from lakestore_demo.broker import START_SECONDS
from tests.support.certificates import Authority

USERS = {"reader": "reader-secret", "nobody": "nobody-secret"}


class SecureKafka(KafkaProcess):
    """Its plain listener is for everything; `secure_address` is for `USERS`, by PLAIN over TLS."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder)
        signed = self.authority.sign("broker")
        self._store = folder / "broker.pem"
        self._store.write_text(signed.key.read_text() + signed.cert.read_text())
        self._secure_port = free_port()
        super().__init__(folder)

    @property
    def secure_address(self) -> str:
        """The address of the listener for users."""
        return f"127.0.0.1:{self._secure_port}"

    def properties(self) -> dict[str, str]:
        """Its settings, with the second listener's."""
        names = super().properties()
        address = f"SASL_SSL://127.0.0.1:{self._secure_port}"
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        names["listeners"] += f",{address}"
        names["advertised.listeners"] += f",{address}"
        names |= {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{module} required {users};",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._store),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        return names

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Give a user rights to a topic or group."""
        admin = AdminClient({"bootstrap.servers": self.address})
        rights = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for given in admin.create_acls(rights).values():
            given.result(START_SECONDS)
