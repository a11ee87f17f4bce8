"""A Kafka broker whose own connections to itself go through a proxy."""

from __future__ import annotations

from pathlib import Path

from jepsen.system.kafka import KafkaProcess
from jepsen.system.proxy import Proxy
from jepsen.system.server import free_port


class ProxiedKafka(KafkaProcess):
    """A broker that reaches itself through a proxy, as with the markers that end transactions."""

    def __init__(self, folder: Path) -> None:
        self._inner_port = free_port()
        self.proxy = Proxy(f"127.0.0.1:{self._inner_port}")
        super().__init__(folder)

    def properties(self) -> dict[str, str]:
        """Its settings."""
        settings = super().properties()
        return settings | {
            "listeners": f"{settings['listeners']},INNER://127.0.0.1:{self._inner_port}",
            "advertised.listeners": f"{settings['advertised.listeners']},INNER://{self.proxy.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INNER:PLAINTEXT",
            "inter.broker.listener.name": "INNER",
        }

    def forget_markers(self) -> None:
        """From here on no transaction's marker is written, though its end is answered."""
        self.proxy.refuses = True
        self.proxy.cut()

    def restart_forgetful(self) -> None:
        """kill -9 and restart, and from then on markers again. A broker with KAFKA-20734 has forgotten older ones."""
        self.kill_and_restart()
        self.proxy.refuses = False

    def stop(self) -> None:
        """End it."""
        super().stop()
        self.proxy.close()
