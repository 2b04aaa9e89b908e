"""Operations on a box, one file each: preflight checks, launch, stop, promote, rollback, comparison."""
