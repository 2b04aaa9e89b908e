"""One file per operation that changes or judges a box: preflight checks, launch, stop, promote, rollback."""
