"""The console's pages: one HTML file, one stylesheet, modules of plain JavaScript."""
