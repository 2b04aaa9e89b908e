"""Tokenized completions on disk to batches of fixed shapes."""
