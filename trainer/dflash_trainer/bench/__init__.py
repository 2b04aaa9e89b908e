"""Benchmarks of single stages: `bench drafter|target|pipeline`."""
