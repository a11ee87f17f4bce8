"""Change events of Debezium in JSON and Avro."""
