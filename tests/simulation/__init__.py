# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in one process, from one seed: see :mod:`.cluster`."""
