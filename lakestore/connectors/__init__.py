"""Changes as events for other systems: Debezium, the Kafka sink.

Everything here is a client.
"""
