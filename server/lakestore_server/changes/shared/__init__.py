"""Shared subscriptions: several consumers, the members, read one subscription's buckets together.

`assignment` says who is to read which bucket, `members` who is there and reads it now (both pure); `marks` how far each
bucket is acknowledged; `seats` joins the three, thread-safe; `stream` sends a member its changes, `batches` cuts them.
"""
