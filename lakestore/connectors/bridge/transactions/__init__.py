"""Source transactions: the events of one, of several topics, put together until it is whole. Pure."""
