"""Changes as events for other systems: JSON and Debezium's envelopes, and the Kafka sink.

Everything here is a client: a change stream in, events out, exactly once where the other side has transactions.
Only `kafka` imports the Kafka library. Not here: change streams themselves (`client`), command lines (`cli`).
"""
