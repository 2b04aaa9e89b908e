"""The compile cache of one environment on one GPU model: prewarm, check, archive and restore."""
