"""Tokenized completions on disk, read into batches of fixed shapes."""
