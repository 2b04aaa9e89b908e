"""Measures the stages of a run by themselves: `bench drafter|target|pipeline`."""
