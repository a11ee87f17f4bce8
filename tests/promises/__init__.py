"""One file for each line of GUARANTEES.md: the test that would fail if the promise were broken."""
