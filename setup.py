# SPDX-License-Identifier: Apache-2.0
"""For tools that still call setup.py; pyproject.toml says the rest."""

import setuptools

setuptools.setup(setup_requires=['pbr>=6.1.1'], pbr=True)
