"""Optimizers with fp32 masters: gradients in, new weights out."""
