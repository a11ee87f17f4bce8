"""The Iceberg REST catalog: metadata as plain JSON, a gatekeeper for our tables, HTTP routes."""
