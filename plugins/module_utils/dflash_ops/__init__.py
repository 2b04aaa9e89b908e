"""Operations on the box, free of Ansible: modules translate arguments and results, this package does the work."""
