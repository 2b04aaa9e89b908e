"""Tokenize JSONL conversations into a dataset on disk."""
