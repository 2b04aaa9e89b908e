"""Immutable Python environments: inspection, build, self-test and drift."""
