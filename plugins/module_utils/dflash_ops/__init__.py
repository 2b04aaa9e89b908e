"""Plain functions that do the work on a box. No Ansible in here: modules translate, these decide and act."""
