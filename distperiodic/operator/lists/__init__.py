# SPDX-License-Identifier: Apache-2.0
"""The lists that commands and pages show, each declared as a query."""
