"""Every byte on disk: one module a format, which encodes and decodes.

Each format has a magic, a version and a CRC. A file is written, synced, renamed, and its folder synced before
anything names it. What these bytes mean to the server is the room `state`.
"""
