# SPDX-License-Identifier: Apache-2.0
"""Property tests judge results, never how long a loaded machine took."""

import hypothesis

hypothesis.settings.register_profile('unhurried', deadline=None)
hypothesis.settings.load_profile('unhurried')
