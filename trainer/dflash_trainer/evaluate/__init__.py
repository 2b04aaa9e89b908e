"""How good a trained drafter is: on held-out text, and in real speculative decoding with its target."""
