"""Presented cuts: a table at a cut as an ordinary Iceberg table, of which nothing is committed.

Two sides and a pipe (`messages`) between them. The *door* is in the server: it names a cut (`cut_key`), asks for its
files, and answers with a metadata document made around them (`document`, `presented`). The *presenter* is a process of
its own (`worker`, started by `worker_client`), so that neither the commit loop nor its interpreter lock waits for it.
It fetches log ranges through the door as any reader does and writes files that nobody syncs: hot data files once, in
*steps* shared by all later cuts, and per cut what hides the rows that are not alive there. Modules of the presenter
import no engine, so that the process starts fast.
"""
