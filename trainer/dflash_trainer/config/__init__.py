"""The configuration of a run and everything that follows from it before torch is imported."""
