"""Options of the JVMs that tests start."""

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Of a JVM that lives for minutes: compiling code to run for hours is a third of what it does otherwise."""
