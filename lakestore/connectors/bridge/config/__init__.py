"""bridge.yaml: text to `spec`, or a sentence with file, line and rule."""
