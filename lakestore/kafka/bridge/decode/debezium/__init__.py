"""Change events of Debezium, in JSON and Avro: envelopes, keys, types and what the source did not send."""
