# SPDX-License-Identifier: Apache-2.0
"""Small bugs that are planted in the product's code, and the suites that must
catch them.

The text files beside this module contain the bugs, in the format of
:mod:`tests.mutants.bug`. :mod:`tests.mutants.runner` plants each bug in a copy
of the package. ``python -m tests.mutants`` runs the suites on these copies,
and prints for each bug the test that caught it.
"""
