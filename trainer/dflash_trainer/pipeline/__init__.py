"""Target workers, queues of hidden states, and drafter workers in one process."""
