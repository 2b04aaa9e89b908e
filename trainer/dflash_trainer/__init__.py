"""Trains DFlash drafters: a frozen target's hidden states in, a block-diffusion draft model out."""

__version__ = "0.1.0"
