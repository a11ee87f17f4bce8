"""The console's pages: one HTML file, one stylesheet and modules of plain JavaScript."""
