"""Who calls, and what they may do: principals, tokens, one table of rights for every RPC and route.

No transport here: ports ask `Admission` with facts of a call.
"""
