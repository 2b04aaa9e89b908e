"""Files that a run writes: phase, metrics, failure, trackers."""
