"""Pure readings of what a study recorded."""
