# SPDX-License-Identifier: Apache-2.0
"""Kept beside pyproject.toml: without it pbr leaves sub-packages out."""

import setuptools

setuptools.setup(setup_requires=['pbr>=6.1.1'], pbr=True)
