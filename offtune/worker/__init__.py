"""The child side: everything that runs inside a trial's own processes."""
