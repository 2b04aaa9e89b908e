"""The training loop: start, resume, steps, evaluation, stop."""
