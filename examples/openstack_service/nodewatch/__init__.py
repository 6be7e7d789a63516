# SPDX-License-Identifier: Apache-2.0
"""A small service in the shape of OpenStack's: it watches nodes."""
