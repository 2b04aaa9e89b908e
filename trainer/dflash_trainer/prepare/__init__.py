"""JSONL conversations to tokenized completions on disk."""
