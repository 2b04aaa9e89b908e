"""Run status, health, logs and named failures, read from outside the training process."""
