"""Changes as events for other systems: JSON and Debezium's envelopes, and the Kafka sink.

Everything here is a client: a change stream in, events out, exactly once where the other side has transactions.
`kafka_client` connects, and tells the Kafka library's errors as ours; besides it only `kafka` imports that library.
Not here: change streams themselves (`client`), command lines (`cli`).
"""
