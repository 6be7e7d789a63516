# SPDX-License-Identifier: Apache-2.0
"""Simulation of a whole cluster in one process, from one seed; see
:mod:`.cluster`.
"""
