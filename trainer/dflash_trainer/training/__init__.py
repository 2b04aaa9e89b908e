"""Training: start, resume, the loop of steps, evaluation and stop."""
