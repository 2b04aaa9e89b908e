"""Target workers, the queues of hidden states, drafter workers."""
