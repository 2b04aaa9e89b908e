"""Building blocks of every operation: files, disk, processes, tmux, GPUs, jobs and the operator lock."""
