"""For plugin authors: conformance checks of every kind of plugin, and toy plugins of known behaviour (`toys`).

Works without pytest: `for check in checks_for(provider): check.run()`. With it: `@parametrize_with_checks([provider])`.
From a shell: `sparkwright plugin check NAME|PATH`.
"""

from sparkwright.core.testing.check import Check, CheckFailed, Outcome, Skipped
from sparkwright.core.testing.kernels import OpCase
from sparkwright.core.testing.kit import checks_for, parametrize_with_checks

__all__ = ["Check", "CheckFailed", "OpCase", "Outcome", "Skipped", "checks_for", "parametrize_with_checks"]
