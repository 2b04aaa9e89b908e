"""End the command while Ansible reads the playbook. See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dflash_fail
author: DFlash operations
short_description: End the command with one message
description:
  - Ansible reports an error that occurs while it reads a playbook with its location in the source. This lookup reports
    an operator's mistake as one plain message instead, and ends the command.
options:
  _terms:
    description: The message.
    required: true
"""

EXAMPLES = r"""
- name: Require a box in the inventory
  ansible.builtin.import_playbook: "{{ 'site.yml' if groups.trainers else lookup('dflash_fail', 'No box.') }}"
"""

RETURN = r"""
_raw:
  description: Never returned.
"""

from typing import Any, NoReturn

from ansible.plugins.lookup import LookupBase
from ansible.utils.display import Display

PARSER_ERROR = 4  # exit code of Ansible for an error in a playbook's source


class LookupModule(LookupBase):  # type: ignore[misc]
    """Lookup that never returns."""

    def run(self, terms: list[str], variables: Any = None, **options: Any) -> NoReturn:
        """Print the message and exit; Ansible would report an exception with a location in the source."""
        Display().error(" ".join(terms), wrap_text=False)
        raise SystemExit(PARSER_ERROR)
