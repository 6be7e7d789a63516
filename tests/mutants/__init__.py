# SPDX-License-Identifier: Apache-2.0
"""Small bugs in the product's own code, and the suites that must catch them.

The bugs stand in the text files beside this one, as :mod:`tests.mutants.bug`
reads them. :mod:`tests.mutants.runner` plants each in a copy of the package;
``python -m tests.mutants`` runs the suites on the copies and prints what
caught what.
"""
