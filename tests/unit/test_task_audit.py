# SPDX-License-Identifier: Apache-2.0
"""Classes of tasks in the audit."""

from distperiodic.core import task_audit
from distperiodic.core.outcomes import Fate
from distperiodic.core.waiting import Wait
from distperiodic.core.workflow import Status


def test_a_class_is_left_out_if_no_condition_of_a_task_leads_to_it():
    conditions = [*Status, *Wait, Fate.LOST, Fate.UNEXPLAINED]

    assert task_audit.NOT_OF_TASKS == set(Fate) - {
        task_audit.fate(one) for one in conditions}
