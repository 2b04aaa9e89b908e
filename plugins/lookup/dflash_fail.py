"""Ends a command that cannot even begin. See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dflash_fail
author: DFlash operations
short_description: End the command with one message
description:
  - While Ansible still reads a playbook, whatever fails is told with the place in its source. What a person typed wrong
    is told here as one message instead, and nothing is done.
options:
  _terms:
    description: The message.
    required: true
"""

EXAMPLES = r"""
- name: Refuse an inventory without a box
  ansible.builtin.import_playbook: "{{ 'site.yml' if groups.trainers else lookup('dflash_fail', 'No box.') }}"
"""

RETURN = r"""
_raw:
  description: It never returns.
"""

from typing import Any, NoReturn

from ansible.plugins.lookup import LookupBase
from ansible.utils.display import Display

PARSER_ERROR = 4  # as Ansible's own code for what it cannot begin with


class LookupModule(LookupBase):  # type: ignore[misc]
    """Never returns."""

    def run(self, terms: list[str], variables: Any = None, **options: Any) -> NoReturn:
        """Say the message and end: an exception would be told with a place in the source."""
        Display().error(" ".join(terms), wrap_text=False)
        raise SystemExit(PARSER_ERROR)
