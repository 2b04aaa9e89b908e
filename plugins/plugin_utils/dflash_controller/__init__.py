"""Code that runs on the controller only: input validation, rendering and the pct channel."""
