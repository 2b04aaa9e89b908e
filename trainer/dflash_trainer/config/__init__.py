"""Configuration of a run, and everything derived from it without torch."""
