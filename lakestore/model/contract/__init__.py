"""The contract of a table: a document of the Open Data Contract Standard 3.2, and its sections as values.

- The document is stored as it was given; everything else is read from it.
- A section is read by its own module, which names the line of a fault.
- This room computes nothing over rows.
"""
