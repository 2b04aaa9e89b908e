"""The runs of a box over time: comparison, known-good runs, audit and pruning."""
