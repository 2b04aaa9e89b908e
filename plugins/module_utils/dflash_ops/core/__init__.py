"""Building blocks of the operations: files, disk, processes, tmux, GPUs, jobs and the operator lock."""
