"""Operations on the box, independent of Ansible; modules only translate arguments and results."""
