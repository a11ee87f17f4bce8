"""Framing: payloads and the schema ids before them, and cursors over the bytes of a whole block."""
