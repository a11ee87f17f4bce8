"""The console: pages for people, and the JSON that they draw.

`static` has the pages, which are files without a build step; `files` sends them, the same ones to everybody. All that
is known comes from `/console/api`: `api` asks the service's own RPCs as the viewer, by the same rights; `tails` follows
a changelog, `queries` has a process answer SQL. A page shows its token as every client does, in a header, so that no
other site's page can speak in its reader's name. Not here: figures (`operate`), rights (`access`).
"""
