# SPDX-License-Identifier: Apache-2.0
"""A small OpenStack-style service that watches nodes."""
