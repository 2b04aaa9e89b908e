"""Package of the stand-in pct."""
