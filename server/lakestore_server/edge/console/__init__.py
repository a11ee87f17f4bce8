"""The console: web pages for people, and the JSON that the pages draw.

- `static` has the pages: plain files without a build step, the same for every viewer.
- `/console/api` has all data. `api` calls the service's own RPCs as the viewer, with the viewer's rights. `tails`
  follows a changelog; `queries` runs SQL in a separate process.
- A page sends its token in a header, as every client does. So a foreign page cannot act in the viewer's name.

Figures are computed in `operate`, rights in `access`.
"""
