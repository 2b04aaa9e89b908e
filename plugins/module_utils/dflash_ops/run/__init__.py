"""A training run on the box: its record, command line, start script, processes, metrics and checkpoints."""
